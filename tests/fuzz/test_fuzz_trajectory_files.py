"""Trajectory files: plain, gzipped and damaged. Writing and reading gives the same trajectories."""

import gzip
import json
import warnings
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, damaged, mutated, mutated_json
from fuzz.scratch import scratch
from seeupo.errors import DemonstrationFileError, TrajectoryFileError
from seeupo.runs.trajectory_files import FORMAT, VERSION, read_header, read_trajectories, to_json, write_trajectories
from seeupo.runs.trajectory_rows import read_rows
from seeupo.training.demonstrations import read_trajectory_demonstrations
from seeupo.types import Credit, Failure, FailureKind, StopReason, Trajectory, Turn, TurnCredit, TurnText

TEXT = TEXTS | ODD_TEXTS
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)

TURNS = (Turn("a", 0, (1, 2), (3, 4), (-0.5, -1.0), 7), Turn("a", 1, (1, 2, 3, 4, 5), (6,), None))
CREDIT = Credit(0.5, (TurnCredit(1, 1.1, 0.5, 0.55, True, (-0.5,)), TurnCredit(0, 1.0, 0.5, None, False, (-0.5, -1))))
OK = Trajectory(
    "a", "g", "t", TURNS, 1.0, 1.0, timings={"seconds": 1.5}, opening="go",
    turn_texts=(TurnText("look", "a box"), TurnText("take", "ok")), credit=CREDIT,
)  # fmt: skip
LOST = Trajectory("b", "g", "t", (), 0.0, stop=StopReason.FAILURE, failure=Failure(FailureKind.TIMED_OUT, "too slow"))
HEADER = {"format": FORMAT, "version": VERSION, "kinds": {"t": "kind"}, "iteration": 1}
RECORDS = [json.loads(json.dumps(to_json(trajectory))) for trajectory in (OK, LOST)]


def check(content: bytes) -> None:
    """Check that a file is read, or rejected with the declared errors."""
    path = scratch() / "00001.jsonl.gz"
    path.write_bytes(content)
    with warnings.catch_warnings(), nothing_executes():
        warnings.simplefilter("ignore", UserWarning)
        try:
            assert isinstance(read_header(path), dict)
            found = list(read_trajectories(path))
        except TrajectoryFileError:
            found = []
        for trajectory in found:
            json.dumps(to_json(trajectory))
        with suppress(TrajectoryFileError, DemonstrationFileError):
            for trajectory in read_trajectory_demonstrations(path, vocab_size=1000):
                turns = trajectory.turns
                assert all(0 <= token < 1000 for turn in turns for token in (*turn.prompt_ids, *turn.action_ids))
        rows = read_rows(path)
        assert rows.count == sum(len(group) for group in rows.groups.values())
        for group in rows.groups.values():
            for row in group:
                row.record()


def gzipped(lines, *, members: bool) -> bytes:
    parts = [f"{line}\n".encode(errors="surrogatepass") for line in lines]
    return b"".join(gzip.compress(part, 1, mtime=0) for part in (parts if members else [b"".join(parts)]))


FILES = st.builds(
    gzipped,
    st.tuples(mutated_json(HEADER, most=1), st.lists(st.sampled_from(RECORDS).flatmap(mutated_json), max_size=3)).map(
        lambda parts: [parts[0], *parts[1]]
    ),
    members=st.booleans(),
)


@given(FILES)
def test_mutated_records_are_read_or_rejected(content):
    check(content)


@given(st.sampled_from(RECORDS).flatmap(lambda record: mutated_json(record, most=2)))
def test_mutated_records_after_a_good_header_are_read_or_rejected(line):
    check(gzipped([json.dumps(HEADER), json.dumps(RECORDS[0]), line], members=True))


@given(FILES.flatmap(damaged))
def test_damaged_files_are_read_or_rejected(content):
    check(content)


PLAIN = b"".join(f"{json.dumps(each)}\n".encode() for each in (HEADER, *RECORDS))


@given(damaged(PLAIN, most=4), st.integers(0, 9))
def test_damaged_lines_are_read_or_rejected(content, level):
    check(gzip.compress(content, level, mtime=0) if level else content)


@st.composite
def trajectories(draw):
    name, turns, history = draw(TEXT), [], draw(IDS)
    for index in range(draw(st.integers(0, 3))):
        action = draw(IDS)
        logprobs = draw(st.none() | st.tuples(*[NUMBERS] * len(action)))
        version = draw(st.none() | st.integers(0, 2**63))
        turns.append(Turn(name, index, history, action, logprobs, version, draw(NUMBERS), draw(TEXT)))
        history = draw(st.sampled_from([history + action, history[:2], (), (1, 2, 3)])) + draw(IDS)
    credits = st.builds(
        TurnCredit, st.integers(0, 9), NUMBERS, NUMBERS, st.none() | NUMBERS, st.booleans(), st.tuples(NUMBERS)
    )
    return Trajectory(
        name, draw(TEXT), draw(TEXT), tuple(turns), draw(NUMBERS), draw(st.none() | NUMBERS), draw(NUMBERS),
        draw(st.sampled_from(StopReason)), draw(st.none() | st.builds(Failure, st.sampled_from(FailureKind), TEXT)),
        draw(st.integers(0, 9)), draw(st.dictionaries(TEXT, NUMBERS, max_size=2)), draw(TEXT),
        tuple(draw(st.lists(st.builds(TurnText, TEXT, TEXT), max_size=len(turns)))),
        draw(st.none() | st.builds(Credit, NUMBERS, st.lists(credits, max_size=3).map(tuple))),
        draw(st.none() | NUMBERS),
    )  # fmt: skip


@given(st.lists(trajectories(), max_size=3), st.lists(trajectories(), max_size=2), mutated(HEADER["kinds"]))
def test_files_survive_the_round_trip(first, more, kinds):
    path = scratch() / "00002.jsonl.gz"
    path.unlink(missing_ok=True)
    header = {"kinds": kinds if isinstance(kinds, dict) and all(isinstance(v, str) for v in kinds.values()) else {}}
    write_trajectories(path, first, header=header)
    write_trajectories(path, more, header={"kinds": "ignored"})
    assert list(read_trajectories(path)) == [*first, *more]
    assert read_header(path) == {"format": FORMAT, "version": VERSION, **header}
    rows = read_rows(path)
    assert (rows.count, rows.damage, rows.kinds) == (len(first) + len(more), None, header["kinds"])
