import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seeupo.errors import DemonstrationFileError
from seeupo.runs.demonstration_files import data_format, read_chat_file
from seeupo.runs.trajectory_files import write_trajectories
from seeupo.types import Message, Tool, ToolCall, Trajectory, Turn

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"what": "cat"}'}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
CHAT = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "on the mat"},
        {"role": "assistant", "content": "It is on the mat."},
    ],
    "tools": [TOOL],
    "source": "other keys are ignored",
}
PAIR = {"prompt": "2 + 2 =", "completion": "4"}


def user(content="hi", **keys):
    return {"role": "user", "content": content, **keys}


def assistant(content="hello", **keys):
    return {"role": "assistant", "content": content, **keys}


@pytest.fixture
def written(tmp_path):
    def write(*rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / "demos.jsonl").write_text("\n".join(lines) + "\n")
        return tmp_path / "demos.jsonl"

    return write


def test_chat_messages_are_read(written):
    (found,) = read_chat_file(written(CHAT))
    assert found.messages == (
        Message("system", "be brief"),
        Message("user", "the cat?"),
        Message("assistant", "", (ToolCall("look", {"what": "cat"}),)),
        Message("tool", "on the mat"),
        Message("assistant", "It is on the mat."),
    )
    assert found.tools == (Tool("look", "Look.", {"type": "object"}),)
    assert found.trained == {2, 4}
    assert found.line == 1


def test_arguments_may_be_an_object(written):
    call = {"function": {"name": "look", "arguments": {"what": "cat"}}}
    (found,) = read_chat_file(written({"messages": [user(), assistant(None, tool_calls=[call])]}))
    assert found.messages[1].tool_calls == (ToolCall("look", {"what": "cat"}),)


def test_only_completions_of_pairs_are_trained_on(written):
    history = [user(), assistant(), user("again")]
    path = written(PAIR, {"prompt": history, "completion": [assistant("a"), user("b"), assistant("c")]})
    one, other = read_chat_file(path)
    assert one.messages == (Message("user", "2 + 2 ="), Message("assistant", "4"))
    assert one.trained == {1}
    assert other.trained == {3, 5}
    assert [message.content for message in other.messages] == ["hi", "hello", "again", "a", "b", "c"]


def test_messages_of_weight_0_are_not_trained_on(written):
    rows = [user(), assistant(weight=0), user(), assistant(weight=1)]
    (found,) = read_chat_file(written({"messages": rows}))
    assert found.trained == {3}


def test_separate_reasoning_becomes_a_thought_and_developer_messages_are_system_messages(written):
    rows = [{"role": "developer", "content": "be brief"}, user(), assistant("4", reasoning_content="2 + 2\n")]
    (found,) = read_chat_file(written({"messages": rows}))
    assert found.messages[0] == Message("system", "be brief")
    assert found.messages[2].content == "<think>\n2 + 2\n</think>\n\n4"


def test_gzipped_files_and_blank_lines(tmp_path):
    path = tmp_path / "demos.jsonl.gz"
    path.write_bytes(gzip.compress(f"\n{json.dumps(PAIR)}\n\n{json.dumps(PAIR)}".encode()))
    assert [found.line for found in read_chat_file(path)] == [2, 4]


def test_format_is_detected_from_the_first_line(written, tmp_path):
    assert data_format(written(CHAT)) == "chat messages"
    assert data_format(written({**CHAT, **PAIR})) == "chat messages"
    assert data_format(written(PAIR)) == "prompt/completion pairs"
    turns = (Turn("t", 0, (1,), (2,)),)
    write_trajectories(tmp_path / "t.jsonl.gz", [Trajectory("t", "g", "task", turns, 1.0)], header={})
    assert data_format(tmp_path / "t.jsonl.gz") == "trajectories"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([""], "demos.jsonl is empty; expected"),
        (["hello"], r"line 1: not JSON .*; expected .*messages"),
        ([{"text": "hi"}], r"line 1: its keys are \['text'\]; expected .*messages"),
        ([{}], "line 1: its keys are none; expected"),
        ([PAIR, {"prompt": "a"}], r"line 2: its keys are \['prompt'\]; expected"),
        ([CHAT, "{"], "line 2: not JSON"),
        ([{"messages": "hi"}], """"messages" is 'hi'; expected a list of messages such as"""),
        ([{"messages": []}], r'"messages" is \[\]; expected a list'),
        ([{"messages": ["hi"]}], """message 1 of "messages" is 'hi'; expected {"role\""""),
        ([{"messages": [user(), {"role": "bot"}]}], "role of message 2 of \"messages\" is 'bot'; expected system"),
        ([{"messages": [user(), {"role": ["user"]}]}], "role of message 2"),
        ([{"messages": [{"content": "a"}]}], 'role of message 1 of "messages" is None'),
        ([{"messages": [user(3)]}], '"content" of message 1 of "messages" is 3; expected a text'),
        ([{"messages": [user([{"type": "image_url"}])]}], '"content" of message 1'),
        ([{"messages": [user([{"type": "text", "text": 1}])]}], '"content" of message 1'),
        ([{"messages": [user()]}], "no assistant message to train on"),
        ([{"messages": [user(), assistant(weight=0)]}], "no assistant message to train on"),
        ([{"messages": [user(), assistant(weight=0.5)]}], '"weight" of message 2 of "messages" is 0.5'),
        ([{"messages": [assistant()]}], 'message 1 of "messages" is the assistant\'s, the first message; expected'),
        ([{"messages": [user(), assistant(), assistant()]}], "message 3 .* after another assistant message"),
        ([{"messages": [user(), assistant(" ")]}], 'message 2 of "messages" is empty; expected a text or tool calls'),
        ([{"messages": [user(), assistant(None)]}], '"content" of message 2'),
        ([{"messages": [user(tool_calls=[CALL])]}], "has tool calls and the role user; expected the role assistant"),
        ([{"messages": [user(), assistant(tool_calls=CALL)]}], '"tool_calls" of message 2 .* expected a list'),
        ([{"messages": [user(), assistant(tool_calls=[{"name": "look"}])]}], "a tool call of message 2"),
        (
            [{"messages": [user(), assistant(tool_calls=[{"function": {"name": "f", "arguments": "{"}}])]}],
            "the arguments of a tool call of message 2 .* expected JSON",
        ),
        (
            [{"messages": [user(), assistant(tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}])]}],
            "a tool call of message 2",
        ),
        ([{"messages": [user(), assistant(function_call={})]}], '"function_call"; expected "tool_calls"'),
        ([{"messages": [user(), assistant(reasoning_content=[])]}], '"reasoning_content" of message 2'),
        ([{**CHAT, "tools": {}}], '"tools" is {}; expected a list'),
        ([{**CHAT, "tools": [{"name": "look"}]}], "a tool is .* expected"),
        ([{**CHAT, "tools": [{"function": {"name": "look", "parameters": 3}}]}], "a tool is .*'look'"),
        ([{"prompt": 3, "completion": "a"}], '"prompt" is 3; expected a text or a list of messages'),
        ([{"prompt": "a", "completion": ""}], '"completion" is empty'),
        ([{"prompt": "a", "completion": [user()]}], "no assistant message to train on"),
        ([{"prompt": [user(), assistant()], "completion": "a"}], '"completion" is the assistant\'s, after another'),
    ],
)
def test_problems_name_the_line_and_what_is_expected(written, rows, problem):
    path = written(*rows)
    with pytest.raises(DemonstrationFileError, match=problem) as caught:
        list(read_chat_file(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_documented_examples_are_valid(written):
    page = (Path(__file__).parents[2] / "docs/guides/warm-start.md").read_text()
    chats, pairs = (block.splitlines() for block in re.findall(r"```jsonl\n(.*?)```", page, re.DOTALL))
    assert [sorted(found.trained) for found in read_chat_file(written(*chats))] == [[2], [1, 3]]
    assert [sorted(found.trained) for found in read_chat_file(written(*pairs))] == [[1], [3]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments"]), inner)
    ),
    max_leaves=10,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]) | JSON, "content": st.text() | JSON},
        optional={"tool_calls": JSON | st.lists(JSON), "weight": JSON, "reasoning_content": JSON},
    )
)


@given(row=st.fixed_dictionaries({"messages": MESSAGES | JSON}, optional={"tools": JSON | st.lists(JSON)}))
@settings(max_examples=300, deadline=None)
def test_any_json_is_read_or_refused(tmp_path_factory, row):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(json.dumps(row))
    try:
        (found,) = read_chat_file(path)
    except DemonstrationFileError:
        return
    assert found.trained
