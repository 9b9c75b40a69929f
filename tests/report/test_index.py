import json
import zlib

from seeupo.report.index import TrajectoryIndex
from seeupo.runs.trajectory_rows import TrajectoryRow


def rows(*names, group="g", task="t"):
    return [TrajectoryRow(name, group, task, "goal", "ok", 1.0, 1.0, -0.123456789, 2, b"") for name in names]


def decoded(index):
    return json.loads(zlib.decompress(index.packed(), 31))


def test_repeated_texts_are_stored_once():
    index = TrajectoryIndex()
    index.add(rows("a", "b"), {"t": "owed"}, run=0, phase=0, iteration=3, location=(4, 7))
    index.add(rows("c", task="u"), {}, run=0, phase=0, iteration=4, location=(5, 0))
    found = decoded(index)
    assert found["rows"] == len(index) == 3
    assert found["lists"] == {"tasks": ["t", "u"], "kinds": ["owed", ""], "stops": ["goal"], "statuses": ["ok"]}
    columns = found["columns"]
    assert (columns["task"], columns["kind"], columns["iteration"]) == ([0, 0, 1], [0, 0, 1], [3, 3, 4])
    assert (columns["chunk"], columns["offset"]) == ([4, 4, 5], [7, 8, 0])
    assert columns["advantage"] == [-0.12346] * 3


def test_repeated_ids_become_unique():
    index = TrajectoryIndex()
    for run, phase in ((0, 0), (0, 0), (0, 0), (0, 1), (1, 0)):
        index.add(rows("a", "a (2)"), {}, run=run, phase=phase, iteration=1, location=(0, 0))
    columns = decoded(index)["columns"]
    assert columns["id"][:2] == columns["id"][6:8] == columns["id"][8:] == ["a", "a (2)"]
    keys = list(zip(columns["run"], columns["phase"], columns["id"], strict=True))
    assert len(set(keys)) == len(keys)


def test_many_equal_ids_are_numbered_in_order():
    """One search per id: comparing each id with all earlier ones would take hours for a file of one repeated id."""
    index = TrajectoryIndex()
    index.add(rows(*["a"] * 50_000), {}, run=0, phase=0, iteration=1, location=(0, 0))
    assert decoded(index)["columns"]["id"] == ["a", *(f"a ({number})" for number in range(2, 50_001))]


def test_very_long_names_are_shortened():
    index = TrajectoryIndex()
    index.add(rows("i" * 10**6, group="g" * 10**6, task="t" * 10**6), {}, run=0, phase=0, iteration=1, location=(0, 0))
    assert len(json.dumps(decoded(index))) < 2000
