"""Reading files: what is right is read, what is wrong is named, all of it at once."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seeupo.envs.dataset.rows import read_rows
from seeupo.errors import EnvError
from seeupo.types import Message


def written(folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def test_prompts_are_texts_or_conversations(tmp_path):
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 4 ="}
    path = written(
        tmp_path,
        {"prompt": "2 + 2 =", "answer": 4},
        b"",
        {"id": "sum", "kind": "sums", "prompt": [system, user], "terms": [3, 4]},
        {"id": 12, "prompt": "\u6570"},
        b"  \r",
    )
    rows = read_rows(path)
    assert list(rows) == ["000001", "sum", "12"]
    assert rows["000001"].messages == (Message("user", "2 + 2 ="),)
    assert rows["000001"].fields == {"prompt": "2 + 2 =", "answer": 4}
    assert rows["sum"].messages == (Message("system", "Be brief."), Message("user", "3 + 4 ="))
    assert rows["sum"].kind == "sums"
    assert rows["12"].place == "line 4 of prompts.jsonl"


def test_a_byte_order_mark_and_windows_line_ends_are_no_error(tmp_path):
    path = written(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r')
    assert [row.messages[0].content for row in read_rows(path).values()] == ["a", "b"]


WRONG = [
    (b'{"prompt": "a"', "not JSON .* at character 15"),
    (b"prompt", "not JSON"),
    (b'{"prompt": "\xff"}', "not UTF-8 .* at byte 13"),
    (["a"], "a JSON object is needed, and this is list"),
    ("a", "a JSON object is needed, and this is str"),
    ({"question": "a"}, 'there is no "prompt"'),
    ({"prompt": None}, '"prompt" should be a text or a list of messages and is None'),
    ({"prompt": []}, '"prompt" should be a text or a list of messages'),
    ({"prompt": ""}, "not empty"),
    ({"prompt": ["a"]}, 'each message of "prompt" should have a "role" and a "content"'),
    ({"prompt": [{"role": "user", "content": "a", "name": "b"}]}, "and nothing else"),
    ({"prompt": [{"role": "tool", "content": "a"}]}, "the role 'tool' is none of system, user, assistant"),
    ({"prompt": [{"role": ["user"], "content": "a"}]}, r"the role \['user'\] is none of"),
    ({"prompt": [{"role": "user", "content": 3}]}, '"content" should be a text'),
    ({"prompt": [{"role": "assistant", "content": "a"}]}, "should be the user's and is the assistant's"),
    ({"prompt": "a", "id": True}, '"id" should be'),
    ({"prompt": "a", "id": ""}, '"id" should be'),
    ({"prompt": "a", "id": 1.5}, '"id" should be'),
    ({"prompt": "a", "kind": 2}, '"kind" should be'),
    ({"prompt": "a", "id": "000001"}, "its id '000001' is that of line 1 of prompts.jsonl too"),
    (b'{"prompt": "a", "n": ' + b"9" * 10_000 + b"}", "integer string conversion"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
]


@pytest.mark.parametrize(("line", "problem"), WRONG)
def test_a_wrong_line_is_named(tmp_path, line, problem):
    path = written(tmp_path, {"prompt": "right"}, line)
    with pytest.raises(EnvError, match=f"prompts.jsonl: these lines .*\n  line 2: .*{problem}"):
        read_rows(path)


def test_all_wrong_lines_are_named_at_once(tmp_path):
    path = written(tmp_path, {"prompt": "right"}, *[line for line, _ in WRONG], {"prompt": "right"})
    with pytest.raises(EnvError) as error:
        read_rows(path)
    lines = str(error.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [f"line {n}" for n in range(2, len(WRONG) + 2)]


def test_a_message_stays_readable_when_everything_is_wrong(tmp_path):
    path = written(tmp_path, *[{} for _ in range(1000)])
    with pytest.raises(EnvError, match=r"line 100: .*\n  and 900 more$"):
        read_rows(path)
    path = written(
        tmp_path, {"prompt": ["a" * 1_000_000]}, {"prompt": 3, "id": "b" * 1_000_000}, {"prompt": "", "id": []}
    )
    with pytest.raises(EnvError) as error:
        read_rows(path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(tmp_path, content):
    with pytest.raises(EnvError, match=r"prompts.jsonl is empty; .*\"prompt\""):
        read_rows(written(tmp_path, content))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(EnvError, match=r"missing.jsonl cannot be read: No such file"):
        read_rows(tmp_path / "missing.jsonl")
    with pytest.raises(EnvError, match="cannot be read: Is a directory"):
        read_rows(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "id"]), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.binary(max_size=30)
        | st.dictionaries(st.sampled_from(["prompt", "id", "kind", "answer"]), JSON).map(
            lambda row: json.dumps(row).encode()
        ),
        max_size=4,
    )
)
def test_any_bytes_are_read_or_refused(tmp_path, lines):
    try:
        rows = read_rows(written(tmp_path, *lines))
    except EnvError:
        return
    assert rows
    assert all(row.messages and row.messages[-1].role == "user" for row in rows.values())
