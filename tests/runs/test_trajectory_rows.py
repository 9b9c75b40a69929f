import gzip
import math
import random

import pytest

from report.made_runs import group_of, odd_trajectories, trajectory, write_lines
from seeupo.runs import trajectory_rows as trajectory_files
from seeupo.runs.trajectory_files import from_json, to_json, write_trajectories
from seeupo.runs.trajectory_rows import read_file


def test_rows_say_what_the_trajectories_are(tmp_path):
    members = odd_trajectories()
    write_trajectories(tmp_path / "a.jsonl.gz", members, facts={"kinds": {"task-900": "owed"}})
    file = read_file(tmp_path / "a.jsonl.gz")
    assert (file.damage, file.kinds, file.count) == (None, {"task-900": "owed"}, len(members))
    rows = [row for rows in file.groups.values() for row in rows]
    for row, member in zip(rows, members, strict=True):
        assert (row.id, row.group, row.task) == (member.id, member.group, member.task)
        assert (row.stop, row.status, row.turns) == (member.stop.value, member.status.value, len(member.samples))
        assert row.reward == (None if math.isnan(member.reward) else member.reward)
        assert row.advantage == (None if member.credit is None else member.credit.advantage)


def test_a_large_file_is_held_as_lines_and_says_the_same(tmp_path, monkeypatch):
    write_trajectories(tmp_path / "a.jsonl.gz", odd_trajectories()[2:6], facts={})
    held = read_file(tmp_path / "a.jsonl.gz").groups
    monkeypatch.setattr(trajectory_files, "HELD", 0)
    lines = read_file(tmp_path / "a.jsonl.gz").groups
    for name, rows in lines.items():
        assert all(isinstance(row.content, bytes) for row in rows)
        assert [row.record() for row in rows] == [row.record() for row in held[name]]


def test_a_file_of_an_older_version_has_no_kinds(tmp_path):
    write_trajectories(tmp_path / "a.jsonl.gz", [], facts={})
    file = read_file(tmp_path / "a.jsonl.gz")
    assert (file.groups, file.kinds, file.damage) == ({}, {}, None)


def damaged_files(path):
    """The same file, damaged in every way."""
    content = path.read_bytes()
    yield "cut", content[: len(content) // 2]
    yield "one byte less", content[:-1]
    yield "garbled", content[: len(content) // 2] + bytes(20) + content[len(content) // 2 + 20 :]
    yield "no gzip", b"hello"
    yield "empty", b""
    text = gzip.decompress(content)
    yield "a line cut", gzip.compress(text[:-20])
    yield "no json", gzip.compress(text + b"{\n")
    yield "no trajectory", gzip.compress(text + b'{"id": 1}\n[]\n')
    yield "another format", gzip.compress(b'{"format": "else", "version": 1}\n')
    yield "a later version", gzip.compress(b'{"format": "seeupo-trajectories", "version": 2}\n')


def test_of_a_damaged_file_whole_groups_are_read(tmp_path):
    path, draw = tmp_path / "trajectories" / "00001.jsonl.gz", random.Random(0)
    path.parent.mkdir()
    groups = {f"00001-{number:03d}": group_of(1, number, size=4, draw=draw) for number in range(6)}
    write_trajectories(path, [each for group in groups.values() for each in group], facts={})
    for how, content in damaged_files(path):
        path.write_bytes(content)
        file = read_file(path)
        assert file.damage is not None, how
        assert file.damage.startswith("trajectories/00001.jsonl.gz is damaged"), how
        for name, rows in file.groups.items():
            assert [from_json(row.record()) for row in rows] == groups[name], how
        if how == "cut":
            assert 0 < len(file.groups) < 6


@pytest.mark.parametrize("change", [{"samples": 3}, {"credit": "none"}, {"group": None}])
def test_values_of_another_type_do_not_stop_the_program(tmp_path, change):
    record = {**to_json(trajectory("a", "g", ["done"], 1.0)), **change}
    write_lines(tmp_path / "a.jsonl.gz", [record])
    read_file(tmp_path / "a.jsonl.gz")
