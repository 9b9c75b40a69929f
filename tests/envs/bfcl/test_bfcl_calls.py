"""What the parsers accept, and that they reject everything else."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.bfcl.hostile import UNREACHABLE, refused_python, refused_tool_calls, tool_call, unharmful_calls
from seeupo.envs.bfcl.calls import (
    MAX_CALLS,
    MAX_CHARACTERS,
    Call,
    DecodeError,
    canonical,
    parse_python,
    parse_tool_calls,
    write_action,
)

LS = tool_call('{"name": "ls", "arguments": {}}')

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
python_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["ls", "cd", "place_order", "_private", "x1"])


def calls_of(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[Call]]:
    call = st.builds(Call, names, st.dictionaries(names, values, max_size=3))
    return st.lists(call, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[ls()]", [Call("ls", {})]),
        ("ls()", [Call("ls", {})]),
        ("```\n[ls()]\n```", [Call("ls", {})]),
        ("[ls(), cd(folder='a')]", [Call("ls", {}), Call("cd", {"folder": "a"})]),
        ("ls(), cd(folder='a')", [Call("ls", {}), Call("cd", {"folder": "a"})]),
        ("[\n  ls(),\n]", [Call("ls", {})]),
        ("[cd('a')]", [Call("cd", {}, ("a",))]),
        ("[mv('a', destination='b')]", [Call("mv", {"destination": "b"}, ("a",))]),
        ("[f(a=-1, b=+2.5, c=None, d=True)]", [Call("f", {"a": -1, "b": 2.5, "c": None, "d": True})]),
        ("[f(a=[1, (2, 'x')], b={'k': [], 1: {}})]", [Call("f", {"a": [1, (2, "x")], "b": {"k": [], 1: {}}})]),
        ("[f(a='x' 'y', b='\\d')]", [Call("f", {"a": "xy", "b": "\\d"})]),
        ("[]", []),
    ],
)
def test_python_actions(text: str, calls: list[Call]) -> None:
    assert parse_python(text) == calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (LS, [Call("ls", {})]),
        (f"I look around.\n{LS}\nDone.", [Call("ls", {})]),
        ('<tool_call>{"name": "cd", "arguments": {"folder": "a"}}</tool_call>', [Call("cd", {"folder": "a"})]),
        (LS + LS, [Call("ls", {}), Call("ls", {})]),
        (
            tool_call('{"name": "f", "arguments": {"a": [1, -2.5, null, true], "b": {"k": "\\u00e9"}}}'),
            [Call("f", {"a": [1, -2.5, None, True], "b": {"k": "é"}})],
        ),
        ("The folder is empty.", []),
        ("[ls()]", []),
    ],
)
def test_tool_call_actions(text: str, calls: list[Call]) -> None:
    assert parse_tool_calls(text) == calls


@pytest.mark.parametrize("text", ["The folder is empty.", "", "I call [ls()]", "[ls(), 'x']", "[ls(a=b)]", "(ls(),)"])
def test_prose_is_not_a_python_action(text: str) -> None:
    if text:
        with pytest.raises(DecodeError):
            parse_python(text)
    else:
        assert parse_python(text) == []


@pytest.mark.parametrize("number", range(len(refused_python(""))))
def test_hostile_python_is_rejected(number: int, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(DecodeError):
        parse_python(refused_python(str(canary))[number])
    assert not canary.exists()


@pytest.mark.parametrize("number", range(len(refused_tool_calls(""))))
def test_hostile_tool_calls_are_rejected(number: int, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(DecodeError):
        parse_tool_calls(refused_tool_calls(str(canary))[number])
    assert not canary.exists()


def test_there_are_enough_hostile_actions() -> None:
    lists = [refused_python("x"), refused_tool_calls("x"), UNREACHABLE, unharmful_calls("x")]
    assert all(len(set(actions)) == len(actions) >= 40 for actions in lists)


def test_limits_are_exact() -> None:
    room = MAX_CHARACTERS - len("[f(a='')]")
    assert parse_python(f"[f(a='{'x' * room}')]")
    with pytest.raises(DecodeError, match="characters are more than"):
        parse_python(f"[f(a='{'x' * (room + 1)}')]")
    assert len(parse_python("[" + "ls()," * MAX_CALLS + "]")) == MAX_CALLS
    assert len(parse_tool_calls(LS * MAX_CALLS)) == MAX_CALLS
    assert parse_python(f"[f(a={2**63 - 1}, b={-(2**63)})]") == [Call("f", {"a": 2**63 - 1, "b": -(2**63)})]


@given(calls_of(python_values))
def test_python_round_trip(calls: list[Call]) -> None:
    assert repr(parse_python(write_action(calls, "python"))) == repr(calls)


@given(calls_of(json_values))
def test_tool_call_round_trip(calls: list[Call]) -> None:
    # A string that closes the block early is rejected, not misread.
    written = write_action(calls, "tool_call")
    if written.count("<tool_call>") == written.count("</tool_call>") == len(calls):
        assert repr(parse_tool_calls(written)) == repr(calls)


@given(calls_of(python_values))
def test_canonical_calls_hold_a_name_and_literals_only(calls: list[Call]) -> None:
    for call in calls:
        tree = ast.parse(canonical(call), mode="eval").body
        assert isinstance(tree, ast.Call)
        assert isinstance(tree.func, ast.Name)
        assert not tree.args
        assert {argument.arg: ast.literal_eval(argument.value) for argument in tree.keywords} == call.arguments


def test_a_canonical_call_has_no_positional_arguments() -> None:
    with pytest.raises(ValueError, match="have no names"):
        canonical(Call("cd", {}, ("a",)))
