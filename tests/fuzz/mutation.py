"""Strategies that damage valid inputs: JSON documents by structure, files and messages by bytes.

Damaged valid inputs reach further into a reader than random bytes, which fail at the first character.
"""

import json
from functools import cache

from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
"""Any code points, including lone surrogates."""
ODD_TEXTS = st.sampled_from(
    [
        "", " ", "\x00", "\n", "\r\n\u2028\x85", "\ud800", "\udfff\ud800", "e\u0301\u202e", "\x1b[31m", "none", "nan",
        "1e999", "-1", "..", "../../x", "/dev/zero", "x" * 5000, "{0.__class__}", "%s%n", "__import__('os').getcwd()",
        "<tool_call>", "</tool_call>", "<think>", "</think>", "```python\n1\n```", "</script><script>", "[bold]",
    ]
)  # fmt: skip
ODD_NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31, -(2**63), 2**63, 2**64, 10**400, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e22]
)
SCALARS = st.none() | st.booleans() | ODD_NUMBERS | st.integers() | st.floats() | ODD_TEXTS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
RAW = {
    name: text
    for depth in (50, 90, 330, 900, 930, 940, 950, 960, 970, 980, 3000, 100_000)
    for name, text in {
        f"lists-{depth}": "[" * depth + "]" * depth,
        f"objects-{depth}": '{"a":' * depth + "1" + "}" * depth,
        f"open-{depth}": "[" * depth,
    }.items()
} | {
    "digits": "9" * 5000,
    "most-digits": "9" * 4300,
    "exponent": "1e99999",
    "infinite": "-Infinity",
    "nan": "NaN",
    "nothing": "",
    "comma": ",",
    "unquoted": "abc",
    "half-escape": '"\\ud800"',
    "bad-escape": '"\\x"',
    "same-keys": '{"a": 1, "a": 2}',
}
"""JSON text that `json.dumps` cannot write, by name."""


class Raw:
    """Text to insert into a JSON document as it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Raw({self.name!r})"


RAWS = st.sampled_from([Raw(name) for name in RAW])


def to_text(document: object) -> str:
    """Return JSON text with raw parts inserted."""
    found: list[Raw] = []

    def hold(value: object) -> object:
        if isinstance(value, Raw):
            found.append(value)
            return f"\x00raw {len(found) - 1}\x00"
        if isinstance(value, dict):
            return {name: hold(inner) for name, inner in value.items()}
        return [hold(inner) for inner in value] if isinstance(value, list) else value

    text = json.dumps(hold(document))
    for number, raw in enumerate(found):
        text = text.replace(json.dumps(f"\x00raw {number}\x00"), RAW[raw.name])
    return text


@st.composite
def mutated(draw, document, *, most=3):
    """Return a copy of a JSON document with up to `most` changes."""
    document = _copy(document)
    for _ in range(draw(st.integers(0, most))):
        paths = list(_paths(document))
        path = draw(st.sampled_from(paths))
        document = _changed(draw, document, path, paths)
    return document


def mutated_json(document, *, most=3):
    """Return the text of a mutated document."""
    return mutated(document, most=most).map(to_text)


def _copy(value):
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list | tuple) else value


def _paths(value, path=()):
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, (*path, index))


def _at(document, path):
    for step in path:
        document = document[step]
    return document


def _changed(draw, document, path, paths):
    if not path:
        return draw(st.just(document) | VALUES | RAWS)
    parent, last = _at(document, path[:-1]), path[-1]
    kind = draw(st.sampled_from(["value", "value", "raw", "near", "delete", "swap", "wrap", "rename", "repeat"]))
    if kind == "value":
        parent[last] = draw(VALUES)
    elif kind == "raw":
        parent[last] = draw(RAWS)
    elif kind == "near":
        parent[last] = draw(_near(parent[last]))
    elif kind == "delete":
        del parent[last]
    elif kind == "swap":
        parent[last] = _copy(_at(document, draw(st.sampled_from(paths))))
    elif kind == "wrap":
        parent[last] = draw(st.sampled_from([[parent[last]], {"a": parent[last]}, [parent[last]] * 3]))
    elif kind == "rename" and isinstance(parent, dict):
        parent[draw(TEXTS | ODD_TEXTS | st.sampled_from([str(path[0]), "name", "id"]))] = parent.pop(last)
    elif isinstance(parent, list):
        parent.insert(last, _copy(parent[last]))
    return document


def _near(value):
    """Return values of the same type that are likely to be wrong."""
    if isinstance(value, bool) or value is None:
        return st.sampled_from([True, False, None, 0, 1, "true"])
    if isinstance(value, int | float):
        return st.sampled_from([value + 1, -value, value * 2**40, str(value)]) | ODD_NUMBERS
    if isinstance(value, str):
        return st.sampled_from([value[:-1], value * 2, value.upper(), f" {value}\n", [value]]) | TEXTS.map(
            lambda text: value + text
        )
    if isinstance(value, list):
        return st.sampled_from([[], value[:-1], value * 2, value[::-1], {str(n): each for n, each in enumerate(value)}])
    return st.sampled_from([{}, list(value), [value]]) if isinstance(value, dict) else RAWS


@st.composite
def damaged(draw, content: bytes, *, most=3):
    """Return bytes with up to `most` local changes, and perhaps without their end."""
    content = bytearray(content)
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 1, 2, 8, 100])))
        kind = draw(st.sampled_from(["replace", "flip", "repeat", "move", "cut"]))
        if kind == "replace":
            content[start:end] = draw(st.binary(max_size=8) | st.sampled_from(INSERTED))
        elif kind == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "repeat":
            content[start:start] = content[start:end] * draw(st.sampled_from([1, 2, 100]))
        elif kind == "move":
            part = content[start:end]
            del content[start:end]
            place = draw(st.integers(0, len(content)))
            content[place:place] = part
        elif draw(st.booleans()):
            del content[start:]
    return bytes(content)


INSERTED = [
    b"\x00", b"\n", b"\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"'''", b"{", b"}", b"[[", b"]", b"=",
    b"-", b"1e999", b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 3000,
    b"a." * 900, b"a." * 30_000, b"\x1f\x8b\x08\x00", b"\x1b[2J",
]  # fmt: skip


@cache
def damaged_text(text: str, most: int = 3):
    """Return the damaged text of a file in UTF-8, as bytes."""
    return damaged(text.encode(errors="surrogatepass"), most=most)
