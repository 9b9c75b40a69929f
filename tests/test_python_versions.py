"""Constructs that behave differently between Python versions, found in the source, so that every version finds them.

Since Python 3.12, `isinstance` with a runtime protocol does not see what `__getattr__` provides. So what an engine can
do is declared as its `capabilities`, and engines, samplers and algorithms have the members of their protocols.
"""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import seeupo
from engines.examples import engine
from seeupo import protocols
from seeupo.algorithms import ALGORITHMS
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.direct_transfer import DirectSource
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.distributed.vllm_sampler import VllmSampler
from seeupo.engines.local import LocalEngine
from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.padded_sampler import PaddedSampler

SOURCES = sorted(Path(seeupo.__file__).parent.rglob("*.py"))
ENGINES = (protocols.TrainableEngine, protocols.CriticEngine)
IMPLEMENTATIONS = [
    *((LocalEngine, protocol) for protocol in ENGINES),
    *((ClusterEngine, protocol) for protocol in (*ENGINES, DirectSource)),
    *((sampler, protocols.Sampler) for sampler in (LocalSampler, PaddedSampler, RemoteSamplers, VllmSampler)),
    *((algorithm, protocols.Algorithm) for algorithm in ALGORITHMS.values()),
]


def members(protocol: type) -> set[str]:
    """Return the names of the methods and properties of a protocol."""
    return {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


DECLARED = set().union(*(members(protocol) for _, protocol in IMPLEMENTATIONS))


def guesses(source: str, protocol_names: set[str] = frozenset({"TrainEngine"})) -> list[str]:
    """Return the expressions that find out at run time what an object can do.

    These are uses of `runtime_checkable`, `isinstance` with a protocol, `hasattr` and `getattr` with the name of a
    protocol's member, and definitions of `__getattr__` in classes.
    """
    matches = []
    for node in ast.walk(ast.parse(source)):
        names = (node.id,) if isinstance(node, ast.Name) else (node.attr,) if isinstance(node, ast.Attribute) else ()
        matches += [f"line {node.lineno}: {name}" for name in names if name == "runtime_checkable"]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function, text = node.func.id, ast.unparse(node)
            used = {part.id for argument in node.args[1:] for part in ast.walk(argument) if isinstance(part, ast.Name)}
            constants = {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
            by_type = function in ("isinstance", "issubclass") and used & protocol_names
            if by_type or (function in ("hasattr", "getattr") and constants & DECLARED):
                matches.append(f"line {node.lineno}: {text}")
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef))
            matches += [
                f"line {method.lineno}: {node.name}.{method.name}"
                for method in methods
                if method.name in ("__getattr__", "__getattribute__")
            ]
    return matches


def protocol_names(source: str) -> set[str]:
    """Return the names of the protocols that a module defines."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if any(ast.unparse(base) == "Protocol" for base in node.bases)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@runtime_checkable\nclass P(Protocol): ...", ["line 1: runtime_checkable"]),
        ("@typing.runtime_checkable\nclass P(Protocol): ...", ["line 1: runtime_checkable"]),
        ("class Proxy:\n    def __getattr__(self, name): ...", ["line 2: Proxy.__getattr__"]),
        ("def __getattr__(name): ...", []),
        ("isinstance(engine, (int, TrainEngine))", ["line 1: isinstance(engine, (int, TrainEngine))"]),
        ("isinstance(engine, LocalEngine)", []),
        ("hasattr(engine, 'send_weights')", ["line 1: hasattr(engine, 'send_weights')"]),
        ("getattr(engine, 'step_critic', None)", ["line 1: getattr(engine, 'step_critic', None)"]),
        ("getattr(config, 'head_dim', None)", []),
    ],
)
def test_guesses_are_found(source, expected):
    assert guesses(source) == expected


def test_the_library_does_not_guess_what_an_object_can_do():
    names = set().union(*(protocol_names(path.read_text()) for path in SOURCES))
    assert {"TrainEngine", "Sampler", "Algorithm", "DirectSource"} <= names
    matches = {path.name: guesses(path.read_text(), names) for path in SOURCES}
    assert {name: lines for name, lines in matches.items() if lines} == {}


@pytest.mark.parametrize(
    ("implementation", "protocol"),
    IMPLEMENTATIONS,
    ids=[f"{one.__name__}-{other.__name__}" for one, other in IMPLEMENTATIONS],
)
def test_classes_have_the_members_of_their_protocols(implementation, protocol):
    missing = object()
    absent = [name for name in members(protocol) if inspect.getattr_static(implementation, name, missing) is missing]
    assert absent == []


def test_attributes_of_an_engine_are_its_own():
    local = engine()
    for name in ("iteration", "tokens", "capabilities"):
        inspect.getattr_static(local, name)  # raises if only `__getattr__` provided it


def test_an_older_python_is_named_when_the_package_is_imported():
    code = "import sys; sys.version_info = (3, 10, 13); import seeupo"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: seeupo needs Python 3.11 or newer; this is Python ")
