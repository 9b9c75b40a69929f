import json
import zlib

from seeupo.report.index import Index, cost_of
from seeupo.report.packing import base64_size
from seeupo.runs.trajectory_rows import Row


def rows(*names, group="g", task="t"):
    return [Row(name, group, task, "goal", "ok", 1.0, -0.123456789, 2, {}) for name in names]


def opened(index):
    return json.loads(zlib.decompress(index.packed(), 31))


def test_texts_that_repeat_are_named_by_their_place():
    index = Index()
    index.add(rows("a", "b"), {"t": "owed"}, run=0, phase=0, iteration=3, place=(4, 7))
    index.add(rows("c", task="u"), {}, run=0, phase=0, iteration=4, place=(5, 0))
    found = opened(index)
    assert found["rows"] == len(index) == 3
    assert found["lists"] == {"tasks": ["t", "u"], "kinds": ["owed", ""], "stops": ["goal"], "statuses": ["ok"]}
    columns = found["columns"]
    assert (columns["task"], columns["kind"], columns["iteration"]) == ([0, 0, 1], [0, 0, 1], [3, 3, 4])
    assert (columns["block"], columns["place"]) == ([4, 4, 5], [7, 8, 0])
    assert columns["advantage"] == [-0.12346] * 3


def test_an_id_that_is_used_twice_gets_a_name_of_its_own():
    index = Index()
    for run, phase in ((0, 0), (0, 0), (0, 0), (0, 1), (1, 0)):
        index.add(rows("a", "a~2"), {}, run=run, phase=phase, iteration=1, place=(0, 0))
    columns = opened(index)["columns"]
    assert columns["id"][:2] == columns["id"][6:8] == columns["id"][8:] == ["a", "a~2"]
    keys = list(zip(columns["run"], columns["phase"], columns["id"], strict=True))
    assert len(set(keys)) == len(keys)


def test_rows_cost_no_more_than_is_said():
    index, cost = Index(), 0
    for group in range(300):
        members = rows(*(f"{group:05d}-{n:03d}" for n in range(4)), group=f"{group:05d}", task=f"task {group}")
        index.add(members, {}, run=0, phase=0, iteration=group, place=(group, 0))
        cost += cost_of(members)
    assert base64_size(len(index.packed())) < cost


def test_names_that_nobody_can_read_are_cut():
    index = Index()
    index.add(rows("i" * 10**6, group="g" * 10**6, task="t" * 10**6), {}, run=0, phase=0, iteration=1, place=(0, 0))
    assert len(json.dumps(opened(index))) < 2000
