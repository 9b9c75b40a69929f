import gzip
import json
from dataclasses import replace

import pytest

from seeupo.errors import TrajectoryFileError
from seeupo.runs import trajectory_files
from seeupo.runs.trajectory_files import (
    FORMAT,
    VERSION,
    from_json,
    read_header,
    read_trajectories,
    to_json,
    write_trajectories,
)
from seeupo.types import Credit, Failure, FailureKind, StopReason, Trajectory, Turn, TurnCredit, TurnText
from seeupo.utils import json_lines


def example(name="a", **options) -> Trajectory:
    turns = (Turn(name, 0, (1, 2), (3,), (-0.5,)), Turn(name, 1, (1, 2, 3, 4), (5,), (-0.25,)))
    return Trajectory(name, "g", "t", turns, **{"reward": 1.0, "opening": "\ud800 \x00 ü", **options})


def test_shared_prompts_are_written_once():
    record = to_json(example())
    assert [(turn["shared"], list(turn["prompt"])) for turn in record["turns"]] == [(0, [1, 2]), (3, [4])]


def test_roles_are_kept_and_old_files_have_none():
    trajectory = example()
    planned = replace(trajectory, turns=tuple(replace(turn, agent_role="planner") for turn in trajectory.turns))
    assert from_json(json.loads(json.dumps(to_json(planned)))) == planned
    record = json.loads(json.dumps(to_json(trajectory)))
    for turn in record["turns"]:
        del turn["agent_role"]
    assert from_json(record) == trajectory


def test_appending_keeps_the_first_header(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    failed = example("b", reward=0.0, stop=StopReason.FAILURE, failure=Failure(FailureKind.TIMED_OUT, "too slow"))
    write_trajectories(path, [example()], header={"policy": "tiny"})
    write_trajectories(path, [failed], header={"policy": "ignored"})
    assert list(read_trajectories(path)) == [example(), failed]
    assert read_header(path) == {"format": FORMAT, "version": VERSION, "policy": "tiny"}


def test_record_cut_by_an_interrupt_is_skipped(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    write_trajectories(path, [example("a")], header={})
    size = path.stat().st_size
    write_trajectories(path, [example("b")], header={})
    path.write_bytes(path.read_bytes()[: size + 30])
    with pytest.warns(UserWarning, match="skipped"):
        assert [trajectory.id for trajectory in read_trajectories(path)] == ["a"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "not the header of a trajectory file"),
        (['{"format": "else", "version": 3}'], "'else'"),
        ([json.dumps({"format": FORMAT, "version": 99})], "version 99"),
        ([json.dumps({"format": FORMAT, "version": None})], "not the header of a trajectory file"),
        ([json.dumps({"format": FORMAT, "version": VERSION}), "{}"], "line 2: KeyError: 'turns'"),
        ([json.dumps({"format": FORMAT, "version": VERSION}), "not json"], "line 2: JSONDecodeError"),
        (["[" * 100_000], "not the header of a trajectory file"),
        ([json.dumps({"format": FORMAT, "version": VERSION}), "[" * 100_000], "line 2: RecursionError"),
    ],
)
def test_invalid_files_are_refused(tmp_path, lines, message):
    path = tmp_path / "other"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    with pytest.raises(TrajectoryFileError, match=message):
        list(read_trajectories(path))


def test_files_that_are_not_gzip_are_refused(tmp_path):
    (tmp_path / "other").write_bytes(b"plain text")
    with pytest.raises(TrajectoryFileError, match="not the header"):
        list(read_trajectories(tmp_path / "other"))


def test_too_large_and_linked_files_are_refused_with_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "some.jsonl.gz"
    write_trajectories(path, [example(opening="x" * 1000)], header={})
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(TrajectoryFileError, match="symbolic link"):
        list(read_trajectories(tmp_path / "link"))
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1000)
    with pytest.raises(TrajectoryFileError, match=r"some.jsonl.gz: line 2 .* limit of 0.001 MB"):
        list(read_trajectories(path))


@pytest.mark.parametrize("tokens", [[-1], [1.5], ["1"], [True], [None]])
def test_tokens_that_are_no_ids_are_refused(tmp_path, tokens):
    record = json.loads(json.dumps(to_json(example())))
    record["turns"][1]["prompt"] = tokens
    with pytest.raises(ValueError, match="turn 1 has tokens that are not integers"):
        from_json(record)


def test_shared_prompts_cannot_expand_without_limit(monkeypatch):
    turn = {"shared": 10**9, "prompt": [1], "action": [1], "logprobs": None, "policy_version": None, "response": None}
    record = {**to_json(example()), "turns": [{**turn, "reward": 0.0, "state_key": ""}] * 100}
    assert len(from_json(record).turns) == 100
    monkeypatch.setattr(trajectory_files, "MAX_TOKENS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 tokens"):
        from_json(record)


def test_deeply_nested_lines_are_refused(tmp_path):
    header = json.dumps({"format": FORMAT, "version": VERSION})
    (tmp_path / "deep").write_bytes(gzip.compress(f"{header}\n{'[' * 10**6}\n".encode()))
    with pytest.raises(TrajectoryFileError, match="line 2: RecursionError"):
        list(read_trajectories(tmp_path / "deep"))


def change(record, path, value):
    *parents, last = path
    for step in parents:
        record = record[step]
    record[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("id",), 5),
        (("opening",), None),
        (("reward",), float("nan")),
        (("reward",), 10**400),
        (("reward",), "1"),
        (("score",), float("inf")),
        (("multiplicity",), None),
        (("timings",), None),
        (("timings", "seconds"), "1"),
        (("truncated_responses",), 1.5),
        (("turns",), 5),
        (("turns", 0), None),
        (("turns", 0, "prompt"), [1.5]),
        (("turns", 0, "prompt"), [-1]),
        (("turns", 0, "action"), ["3"]),
        (("turns", 1, "shared"), -1),
        (("turns", 1, "shared"), True),
        (("turns", 0, "logprobs"), [None]),
        (("turns", 0, "policy_version"), "1"),
        (("turns", 0, "response"), 5),
        (("turns", 0, "observation"), None),
        (("credit", "advantage"), None),
        (("credit", "turns", 0, "new_logprobs"), ["x"]),
        (("credit", "turns", 0, "ratio"), float("nan")),
        (("failure",), {"kind": "timed_out", "message": None}),
        (("failure",), {"kind": "unheard of", "message": ""}),
    ],
)
def test_fields_of_wrong_types_are_refused(tmp_path, path, value):
    credit = Credit(0.5, (TurnCredit(0, 1.1, 0.5, 0.55, False, (-0.5,)),))
    texts = (TurnText("read", "mail"), TurnText("done", "ok"))
    record = json.loads(json.dumps(to_json(example(timings={"seconds": 1.5}, turn_texts=texts, credit=credit))))
    change(record, path, value)
    file = tmp_path / "some.jsonl.gz"
    header = {"format": FORMAT, "version": VERSION}
    file.write_bytes(gzip.compress(f"{json.dumps(header)}\n{json.dumps(record)}\n".encode()))
    with pytest.raises(TrajectoryFileError, match="line 2"):
        list(read_trajectories(file))


def test_shared_prompts_of_a_file_cannot_expand_without_limit(tmp_path, monkeypatch):
    path = tmp_path / "some.jsonl.gz"
    write_trajectories(path, [example()] * 5, header={})
    assert len(list(read_trajectories(path))) == 5
    monkeypatch.setattr(trajectory_files, "MAX_FILE_TOKENS", 29)  # each has two prompts, of 2 and 4 tokens
    with pytest.raises(TrajectoryFileError, match="line 6: the prompts have more than 29 tokens"):
        list(read_trajectories(path))


def test_the_number_of_lines_is_limited(tmp_path, monkeypatch):
    path = tmp_path / "some.jsonl.gz"
    write_trajectories(path, [example()] * 9, header={})
    monkeypatch.setattr(trajectory_files, "MAX_LINES", 10)
    assert len(list(read_trajectories(path))) == 9
    write_trajectories(path, [example()], header={})
    with pytest.raises(TrajectoryFileError, match="more lines than the limit of 10"):
        list(read_trajectories(path))
