import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.envs.pool.wire import (
    WireError,
    decode,
    encode,
    from_json,
    to_json,
)
from seeupo.types import Message, StepResult, Task, Tool, ToolCall

# Any code point, including surrogates: models may write anything.
texts = st.text(st.characters(exclude_categories=()), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)
calls = st.builds(ToolCall, texts, objects)
messages = st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), texts, st.lists(calls, max_size=2).map(tuple)
)
results = st.builds(
    StepResult,
    st.lists(messages, max_size=3).map(tuple),
    st.none() | st.lists(st.builds(Tool, texts, texts, objects), max_size=2).map(tuple),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.booleans(),
    objects,
    st.none() | texts,
)


@given(results)
def test_results_survive_the_round_trip(result):
    line = encode(to_json(result))
    assert line.count(b"\n") == 1
    assert from_json(StepResult, decode(line), "step") == result


@given(st.builds(Task, texts, texts, texts, st.integers(), objects))
def test_tasks_survive_the_round_trip(task):
    assert from_json(Task, decode(encode(to_json(task))), "task") == task


RESULT = to_json(StepResult(()))
MESSAGE = {"role": "user", "content": "", "tool_calls": []}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": None},
        {"messages": [{**MESSAGE, "role": "stranger"}]},
        {"messages": [{**MESSAGE, "role": ["user"]}]},
        {"messages": [{**MESSAGE, "content": 3}]},
        {"messages": [{**MESSAGE, "tool_calls": [{"name": "f", "arguments": "x"}]}]},
        {"tools": [{"name": "f", "description": "", "parameters": []}]},
        {"reward": "1"},
        {"terminated": 1},
        {"info": []},
    ],
)
def test_fields_of_wrong_types_are_errors(fields):
    assert from_json(StepResult, {**RESULT, "messages": [MESSAGE]}, "step").messages == (Message("user", ""),)
    with pytest.raises(WireError, match="expected"):
        from_json(StepResult, {**RESULT, **fields}, "step")
    with pytest.raises(WireError, match="expected"):
        from_json(StepResult, {}, "step")


@pytest.mark.parametrize("nested", [b"[" * 99 + b"[[]]" + b"]" * 99, b'{"a":' * 100 + b"[]" + b"}" * 100])
def test_deeply_nested_messages_are_errors(nested):
    assert decode(b'{"value":' + b"[" * 98 + b'{"a":1}' + b"]" * 98 + b"}")
    with pytest.raises(WireError, match="nested more than 100 deep"):
        decode(b'{"value":' + nested + b"}")


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"", b"null"], ids=lambda line: str(line[:9])
)
def test_hostile_lines_are_errors(line):
    with pytest.raises(WireError):
        decode(line)


def test_values_that_are_nested_too_deeply_cannot_be_sent():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(WireError, match="not JSON"):
        encode({"value": value})
    while value:  # freeing it at once would be recursive, too
        value = value[0]


def test_values_that_are_not_json_cannot_be_sent():
    with pytest.raises(WireError, match="set is not JSON serializable"):
        encode({"value": {1, 2}})


@pytest.mark.parametrize("value", [True, "1.0", None, [1.0]])
def test_a_score_that_is_not_a_number_is_an_error(value):
    with pytest.raises(WireError, match=r"score is .*; expected a finite number"):
        from_json(float, value, "score")


def test_a_number_too_large_for_a_float_is_an_error():
    with pytest.raises(WireError, match="expected a finite number"):
        from_json(float, 10**400, "reward")


@pytest.mark.parametrize("text", ["\ud800", "\ud800\udfff", "\0\r\n\u2028\x85", "é漢🙂"])
def test_text_is_never_changed(text):
    line = encode({"text": text})
    assert line.count(b"\n") == 1
    assert decode(line) == {"text": text}
