"""Constructs that behave differently between Python versions, found in the source, so that every version finds them."""

import ast
from pathlib import Path

import pytest

import seeupo

SOURCES = sorted(Path(seeupo.__file__).parent.rglob("*.py"))


def proxies_and_runtime_protocols(source: str) -> list[str]:
    """Return uses of `runtime_checkable` and definitions of `__getattr__` in classes.

    Since Python 3.12, `isinstance` with a runtime protocol does not see what `__getattr__` provides.
    """
    matches = []
    for node in ast.walk(ast.parse(source)):
        names = (node.id,) if isinstance(node, ast.Name) else (node.attr,) if isinstance(node, ast.Attribute) else ()
        matches += [f"line {node.lineno}: {name}" for name in names if name == "runtime_checkable"]
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef))
            matches += [
                f"line {method.lineno}: {node.name}.{method.name}"
                for method in methods
                if method.name in ("__getattr__", "__getattribute__")
            ]
    return matches


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@runtime_checkable\nclass P(Protocol): ...", ["line 1: runtime_checkable"]),
        ("@typing.runtime_checkable\nclass P(Protocol): ...", ["line 1: runtime_checkable"]),
        ("class Proxy:\n    def __getattr__(self, name): ...", ["line 2: Proxy.__getattr__"]),
        ("def __getattr__(name): ...", []),
    ],
)
def test_proxies_and_runtime_protocols_are_found(source, expected):
    assert proxies_and_runtime_protocols(source) == expected


def test_the_library_has_no_proxy_and_no_runtime_protocol():
    matches = {path.name: proxies_and_runtime_protocols(path.read_text()) for path in SOURCES}
    assert {name: lines for name, lines in matches.items() if lines} == {}
