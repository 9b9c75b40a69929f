"""Reading files: valid lines become rows, all malformed lines are reported at once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.envs.dataset.rows import read_rows
from seeupo.errors import EnvError
from seeupo.types import Message


def written(folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def test_prompts_are_strings_or_conversations(tmp_path):
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


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    path = written(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r')
    assert [row.messages[0].content for row in read_rows(path).values()] == ["a", "b"]


WRONG = [
    (b'{"prompt": "a"', "not JSON .* at character 15"),
    (b"prompt", "not JSON"),
    (b'{"prompt": "\xff"}', "not UTF-8 .* at byte 13"),
    (["a"], "a JSON array; one object per line is expected"),
    ("a", "expected a JSON object, and this is str"),
    ({"question": "a"}, '"prompt" is missing'),
    ({"prompt": None}, '"prompt" is None; expected a string or a list of messages'),
    ({"prompt": []}, r'"prompt" is \[\]; expected a string or a list of messages'),
    ({"prompt": ""}, "expected a nonempty string"),
    ({"prompt": ["a"]}, 'each message of "prompt" must have a "role" and a "content"'),
    ({"prompt": [{"role": "user", "content": "a", "name": "b"}]}, "and nothing else"),
    ({"prompt": [{"role": "tool", "content": "a"}]}, "role is 'tool'; expected one of system, user, assistant"),
    ({"prompt": [{"role": ["user"], "content": "a"}]}, r"role is \['user'\]; expected one of"),
    ({"prompt": [{"role": "user", "content": 3}]}, '"content" is 3; expected a nonempty string'),
    ({"prompt": [{"role": "assistant", "content": "a"}]}, "has the role assistant; expected user"),
    ({"prompt": "a", "id": True}, '"id" is True'),
    ({"prompt": "a", "id": ""}, '"id" is'),
    ({"prompt": "a", "id": 1.5}, '"id" is 1.5'),
    ({"prompt": "a", "kind": 2}, '"kind" is 2'),
    ({"prompt": "a", "id": "000001"}, "its id '000001' is already used in line 1 of prompts.jsonl"),
    (b'{"prompt": "a", "n": ' + b"9" * 10_000 + b"}", "integer string conversion"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
]


@pytest.mark.parametrize(("line", "problem"), WRONG)
def test_a_malformed_line_is_reported(tmp_path, line, problem):
    path = written(tmp_path, {"prompt": "right"}, line)
    with pytest.raises(EnvError, match=f"prompts.jsonl: fix or remove .*\n  line 2: .*{problem}"):
        read_rows(path)


def test_all_malformed_lines_are_reported_at_once(tmp_path):
    path = written(tmp_path, {"prompt": "right"}, *[line for line, _ in WRONG], {"prompt": "right"})
    with pytest.raises(EnvError) as error:
        read_rows(path)
    lines = str(error.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [f"line {n}" for n in range(2, len(WRONG) + 2)]


def test_the_error_message_has_a_bounded_length(tmp_path):
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


@given(
    lines=st.lists(
        st.binary(max_size=30)
        | st.dictionaries(st.sampled_from(["prompt", "id", "kind", "answer"]), JSON).map(
            lambda row: json.dumps(row).encode()
        ),
        max_size=4,
    )
)
def test_any_bytes_are_rows_or_an_error(tmp_path, lines):
    try:
        rows = read_rows(written(tmp_path, *lines))
    except EnvError:
        return
    assert rows
    assert all(row.messages and row.messages[-1].role == "user" for row in rows.values())
