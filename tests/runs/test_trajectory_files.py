import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.errors import TrajectoryFileError
from seeupo.runs.trajectory_files import FORMAT, from_json, read_header, read_trajectories, to_json, write_trajectories
from seeupo.types import Credit, Status, StopReason, Trajectory, Turn, TurnCredit

IDS = st.lists(st.integers(0, 9), max_size=8).map(tuple)


@st.composite
def trajectories(draw):
    name = draw(st.text(min_size=1, max_size=5))
    samples, history = [], draw(IDS)
    for turn in range(draw(st.integers(0, 4))):
        action = draw(IDS)
        logprobs = tuple(-0.1 * n for n in range(len(action))) if draw(st.booleans()) else None
        samples.append(Turn(name, turn, history, action, logprobs))
        # Grown, cut, or something else altogether.
        history = draw(st.sampled_from([history + action, history[:2], (1, 2, 3)])) + draw(IDS)
    turns = tuple(TurnCredit(n, 1.1, 0.5, 0.55, n % 2 == 0, (-0.5, -1.0)) for n in range(len(samples)))
    return Trajectory(
        name, "g", "t", tuple(samples), draw(st.floats(0, 1)),
        stop=draw(st.sampled_from(StopReason)), timings={"seconds": 1.5}, texts=tuple(draw(st.lists(st.text()))),
        credit=draw(st.sampled_from([None, Credit(0.5, turns)])),
    )  # fmt: skip


@given(trajectories())
def test_what_is_written_comes_back(trajectory):
    assert from_json(json.loads(json.dumps(to_json(trajectory)))) == trajectory


def example(name="a", **options) -> Trajectory:
    samples = (Turn(name, 0, (1, 2), (3,), (-0.5,)), Turn(name, 1, (1, 2, 3, 4), (5,), (-0.25,)))
    return Trajectory(name, "g", "t", samples, **{"reward": 1.0, "texts": ("\ud800 \x00 ü",), **options})


def test_shared_prompts_are_written_once():
    record = to_json(example())
    assert [(turn["shared"], list(turn["prompt"])) for turn in record["samples"]] == [(0, [1, 2]), (3, [4])]


def test_files_grow_and_keep_their_header(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    failed = example("b", reward=math.nan, status=Status.FAILED, stop=StopReason.FAILURE)
    write_trajectories(path, [example()], facts={"policy": "tiny"})
    write_trajectories(path, [failed], facts={"policy": "not asked"})
    first, second = read_trajectories(path)
    assert first == example()
    assert math.isnan(second.reward)
    assert second.status is Status.FAILED
    assert read_header(path) == {"format": FORMAT, "version": 1, "policy": "tiny"}


def test_what_an_interrupt_cut_off_is_left_out(tmp_path):
    path = tmp_path / "some.jsonl.gz"
    write_trajectories(path, [example("a")], facts={})
    whole = path.stat().st_size
    write_trajectories(path, [example("b")], facts={})
    path.write_bytes(path.read_bytes()[: whole + 30])
    with pytest.warns(UserWarning, match="ends in the middle of a record"):
        assert [trajectory.id for trajectory in read_trajectories(path)] == ["a"]


def test_other_files_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "other"

    def refused(lines, message):
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        with pytest.raises(TrajectoryFileError, match=message):
            list(read_trajectories(path))

    header = json.dumps({"format": FORMAT, "version": 1})
    refused([], "no file of trajectories")
    refused(['{"format": "else", "version": 1}'], "no file of trajectories: another format")
    refused([json.dumps({"format": FORMAT, "version": 99})], "of version 99; this program reads up to 1")
    refused([header, "{}"], "line 2: KeyError: 'samples'")
    refused([header, "not json"], "line 2: JSONDecodeError")
    path.write_bytes(b"plain text")
    with pytest.raises(TrajectoryFileError, match="is damaged"):
        list(read_trajectories(path))
