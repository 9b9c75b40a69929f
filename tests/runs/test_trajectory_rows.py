import gzip
import random
import tracemalloc

import pytest

from report.made_runs import group_of, odd_trajectories, trajectory, write_lines
from seeupo.runs.trajectory_files import from_json, to_json, write_trajectories
from seeupo.runs.trajectory_rows import read_rows
from seeupo.utils import json_lines


def test_rows_match_the_trajectories(tmp_path):
    members = odd_trajectories()
    write_trajectories(tmp_path / "a.jsonl.gz", members, header={"kinds": {"task-900": "owed"}})
    file = read_rows(tmp_path / "a.jsonl.gz")
    assert (file.damage, file.kinds, file.count) == (None, {"task-900": "owed"}, len(members))
    rows = [row for rows in file.groups.values() for row in rows]
    for row, member in zip(rows, members, strict=True):
        failed = member.failure is not None
        assert (row.id, row.group, row.task) == (member.id, member.group, member.task)
        assert (row.stop, row.status, row.turns) == (member.stop.value, "failed" if failed else "ok", len(member.turns))
        assert (row.score, row.reward) == (member.score, None if failed else member.reward)
        assert row.advantage == (None if member.credit is None else member.credit.advantage)


def test_empty_file_has_no_groups_and_no_kinds(tmp_path):
    write_trajectories(tmp_path / "a.jsonl.gz", [], header={})
    file = read_rows(tmp_path / "a.jsonl.gz")
    assert (file.groups, file.kinds, file.damage) == ({}, {}, None)


GROUPS = {f"00001-{number:03d}": group_of(1, number, size=4, rng=random.Random(number)) for number in range(6)}


def damage(content: bytes, how: str) -> bytes:
    text, half = gzip.decompress(content), len(content) // 2
    return {
        "truncated": content[:half],
        "one byte less": content[:-1],
        "garbled": content[:half] + bytes(20) + content[half + 20 :],
        "not gzip": b"hello",
        "empty": b"",
        "incomplete line": gzip.compress(text[:-20]),
        "not JSON": gzip.compress(text + b"{\n"),
        "not a trajectory": gzip.compress(text + b'{"id": 1}\n[]\n'),
        "another format": gzip.compress(b'{"format": "else", "version": 1}\n'),
        "a later version": gzip.compress(b'{"format": "seeupo-trajectories", "version": 99}\n'),
    }[how]


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("truncated", range(1, 6)),
        ("one byte less", range(5, 7)),
        ("garbled", range(6)),
        ("not gzip", [0]),
        ("empty", [0]),
        ("incomplete line", [5]),
        ("not JSON", [6]),
        ("not a trajectory", [6]),
        ("another format", [0]),
        ("a later version", [0]),
    ],
)
def test_damaged_file_keeps_its_complete_groups(tmp_path, how, kept):
    path = tmp_path / "trajectories" / "00001.jsonl.gz"
    path.parent.mkdir()
    write_trajectories(path, [each for group in GROUPS.values() for each in group], header={})
    path.write_bytes(damage(path.read_bytes(), how))
    file = read_rows(path)
    assert file.damage.startswith("trajectories/00001.jsonl.gz is damaged")
    assert len(file.groups) in kept
    for name, rows in file.groups.items():
        assert [from_json(row.record()) for row in rows] == GROUPS[name]


@pytest.mark.parametrize("change", [{"turns": 3}, {"credit": "none"}, {"score": "x", "stop": None}, {"group": None}])
def test_malformed_record_damages_the_file_only_if_the_row_needs_the_value(tmp_path, change):
    """A row needs the number of turns and the advantage; other odd values are kept or left empty."""
    good = [trajectory(name, "good", ["done"], 1.0) for name in ("a", "b")]
    odd = {**to_json(trajectory("c", "odd", ["done"], 1.0)), **change}
    write_lines(tmp_path / "a.jsonl.gz", [*good, odd])
    file = read_rows(tmp_path / "a.jsonl.gz")
    assert [row.id for row in file.groups["good"]] == ["a", "b"]
    if "turns" in change or "credit" in change:
        assert "after its first 2 trajectories" in file.damage
        assert list(file.groups) == ["good"]
    else:
        assert file.damage is None
        (row,) = file.groups[str(change.get("group", "odd"))]
        assert (row.id, row.score) == ("c", None if "score" in change else 1.0)


def test_oversized_lines_end_the_file_with_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "trajectories" / "00001.jsonl.gz"
    huge = trajectory("c", "huge", ["done"], 1.0, opening="x" * 10_000)
    write_lines(path, [trajectory("a", "small", ["done"], 1.0), huge])
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 5000)
    file = read_rows(path)
    assert list(file.groups) == ["small"]
    assert "trajectories/00001.jsonl.gz is damaged after its first 1 trajectories: line 3 is longer" in file.damage


def test_rows_of_a_file_that_expands_a_lot_take_little_memory(tmp_path):
    """A large file keeps compressed lines: 60 MB of text in a file of 0.3 MB must not take 60 MB of memory."""
    record = {**to_json(trajectory("a", "group", ["done"], 1.0)), "opening": "x" * 10**7, "task": "t" * 5000}
    write_lines(tmp_path / "a.jsonl.gz", [record] * 6)
    assert (tmp_path / "a.jsonl.gz").stat().st_size < 400_000
    tracemalloc.start()
    file = read_rows(tmp_path / "a.jsonl.gz")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert file.damage is None
    assert kept < 2_000_000
    assert {len(row.task) for row in file.groups["group"]} == {1000}
