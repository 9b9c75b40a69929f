import random
import shutil

import pytest

from report.made_runs import cut, made_run, odd_run, trajectory, write_lines
from report.opened import opened, raw
from seeupo.report.packing import base64_size
from seeupo.runs.trajectory_files import read_trajectories, to_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "run", iterations=12, groups=8, size=4)


def members(page, phase=0):
    """Ids of each group of the page."""
    found = {}
    for row, _ in page.rows():
        if row["phase"] == phase:
            found.setdefault((row["iteration"], row["group"]), []).append(row["id"])
    return found


def all_members(run):
    found = {}
    for path in sorted((run / "trajectories").iterdir()):
        for each in read_trajectories(path):
            found.setdefault((int(path.name[:5]), each.group), []).append(each.id)
    return found


def test_a_small_run_is_inside_with_all_its_trajectories(run):
    page = opened(run)
    assert members(page) == all_members(run)
    assert page.runs[0]["trajectories"] == {
        "total": 432,
        "kept": 432,
        "how": "Inside this page: all 384 trajectories of training and all 48 of held-out tasks.",
    }
    assert page.index["rows"] == 432


def test_rows_and_bodies_belong_together(run):
    whole = {each.id: each for path in (run / "trajectories").iterdir() for each in read_trajectories(path)}
    for row, body in opened(run).rows():
        if row["phase"] == 0:
            each = whole[row["id"]]
            assert (row["task"], row["group"], row["reward"]) == (each.task, each.group, each.reward)
            assert (row["stop"], row["status"], row["kind"]) == (each.stop.value, each.status.value, "settle")
            assert row["advantage"] == pytest.approx(each.credit.advantage, rel=1e-4)
            assert row["turns"] == len(body["turns"]) == len(each.turns)
            assert ["".join(text for text, _ in turn["spans"]) for turn in body["turns"]] == list(each.texts[1::2])
        else:
            assert row["kind"] == "owed"
            assert row["iteration"] == {1: 0, 2: 12}[row["phase"]]


@pytest.mark.parametrize("max_bytes", [0, 60_000, 100_000, 120_000])
def test_the_limit_holds_and_groups_are_whole(run, max_bytes):
    with raw([run], max_bytes) as blocks:
        size = sum(base64_size(len(content)) for content in blocks.values())
    page = opened(run, max_bytes=max_bytes)
    kept = page.runs[0]["trajectories"]
    assert size <= max(max_bytes, 30_000)
    assert kept["kept"] == page.index["rows"] < kept["total"] == 432
    assert (kept["kept"] > 0) == (max_bytes > 0)
    everything = all_members(run)
    for key, ids in members(page).items():
        assert ids == everything[key]
    assert "drawn at random with a fixed seed" in kept["how"]
    if max_bytes >= 100_000:
        assert size > 0.6 * max_bytes


def test_each_iteration_has_its_share(run):
    page = opened(run, max_bytes=120_000)
    counts = {}
    for iteration, _ in members(page):
        counts[iteration] = counts.get(iteration, 0) + 1
    assert sorted(counts) == list(range(1, 13))
    assert max(counts.values()) <= min(counts.values()) + 2
    few = opened(run, max_bytes=60_000)
    places = [group[-3:] for _, group in members(few)]
    assert len(places) < 48
    assert len(set(places)) > 5  # not always the first ones


def test_the_same_held_out_tasks_are_kept_before_and_after(run):
    partly = 0
    for max_bytes in range(26_000, 46_000, 2_000):
        page = opened(run, max_bytes=max_bytes)
        before, after = ([group for _, group in members(page, phase)] for phase in (1, 2))
        assert before[: len(after)] == after[: len(before)]
        partly += 0 < len(before) < 12
    assert partly > 0


def test_the_same_run_gives_the_same_bytes_in_whatever_order_files_are_listed(run, tmp_path, monkeypatch):
    with raw([run], 120_000) as blocks:
        first = dict(blocks)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    listed = type(copy).iterdir
    monkeypatch.setattr(type(copy), "iterdir", lambda self: reversed(list(listed(self))))
    monkeypatch.chdir(tmp_path)
    with raw([copy], 120_000) as blocks:
        assert {name: content for name, content in blocks.items() if name != "overview"} == {
            name: content for name, content in first.items() if name != "overview"
        }
        again = dict(blocks)
    with raw([copy], 120_000) as blocks:
        assert dict(blocks) == again


def test_several_runs_share_the_page(run, tmp_path):
    other = made_run(tmp_path / "run", iterations=2, seed=1)
    page = opened(run, other, max_bytes=150_000)
    assert [each["name"] for each in page.runs] == ["run", "run (2)"]
    assert [each["trajectories"]["kept"] for each in page.runs][1] == 60
    assert {row["run"] for row, _ in page.rows()} == {0, 1}
    first = opened(run, max_bytes=10**6)
    assert first.runs[0]["trajectories"]["kept"] > page.runs[0]["trajectories"]["kept"]


def test_every_odd_case_is_inside(tmp_path):
    page = opened(odd_run(tmp_path / "odd"))
    assert page.runs[0]["missing"] == []
    found = {row["id"]: (row, body) for row, body in page.rows() if row["phase"] == 0}
    assert len(found) == 15
    failed, body = found["00001-900-0"]
    assert (failed["reward"], failed["status"], failed["stop"]) == (None, "failed", "failure")
    assert (body["group_mean"], body["group_rewards"]) == (None, [None, None])
    assert found["00001-901-0"][1]["turns"] == []
    empty = found["00001-901-1"][1]["turns"]
    assert [turn["spans"] == [] for turn in empty] == [True, False, True]
    assert empty[0]["credit"]["ratio"] == 1.0
    ten = found["00001-902-0"][1]["turns"]
    assert [turn["credit"]["position"] for turn in ten] == list(range(10, 0, -1))
    assert found["00001-904-0"][0]["advantage"] is None
    assert "half a character \ufffd alone" in page.index["lists"]["tasks"]
    assert "<script>alert(1)</script>" in page.index["lists"]["tasks"]


def test_a_damaged_file_costs_only_what_is_damaged(run, tmp_path):
    shutil.copytree(run, copy := tmp_path / "run")
    cut(copy / "trajectories" / "00002.jsonl.gz", 0.6)
    (copy / "trajectories" / "00003.jsonl.gz").write_bytes(b"no gzip")
    page = opened(copy)
    missing = " ".join(page.runs[0]["missing"])
    assert "trajectories/00002.jsonl.gz is damaged behind its first" in missing
    assert "trajectories/00003.jsonl.gz is damaged and cannot be read" in missing
    whole, kept = all_members(run), members(page)
    assert {iteration for iteration, _ in kept} == set(range(1, 13)) - {3}
    assert all(ids == whole[key] for key, ids in kept.items())
    points = {point[0]: point for point in page.curve("success")["training"]}
    assert points[2][1] is not None
    assert points[2][2:] == [None, None]  # part of an iteration is no sample of it
    assert points[4][2] is not None


def test_trajectories_that_are_not_as_they_should_be_are_left_out(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    good = trajectory("a", "g", ["done"], 1.0)
    odd = [
        {**to_json(trajectory(name, "g", ["done"], 0.0)), **change}
        for name, change in {
            "b": {"texts": 3},
            "c": {"samples": [1]},
            "d": {"credit": {"turns": [{}]}},
            "e": {"samples": [{"shared": 0, "prompt": [], "action": ["x"], "logprobs": None}]},
            "f": {"samples": [{"shared": 0, "prompt": [], "action": [-1], "logprobs": None}]},
        }.items()
    ]
    write_lines(run / "trajectories" / "00001.jsonl.gz", [good, *odd])
    page = opened(run)
    assert members(page) == {(1, "g"): ["a"]}
    assert page.body("a")["group_size"] == 6
    assert "5 trajectories are not as they should be" in " ".join(page.runs[0]["missing"])


def test_held_out_kinds_of_an_older_file_come_from_the_evaluation(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    path = run / "evaluations" / "00000.jsonl.gz"
    write_lines(path, list(read_trajectories(path)))
    assert {row["kind"] for row, _ in opened(run).rows() if row["phase"] == 1} == {"owed"}


def test_training_files_of_an_older_version_have_no_kinds(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    path = run / "trajectories" / "00001.jsonl.gz"
    write_lines(path, list(read_trajectories(path)))
    assert {row["kind"] for row, _ in opened(run).rows() if row["phase"] == 0} == {""}


def test_held_out_episodes_are_there_though_the_evaluation_cannot_be_read(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    for path in (run / "evaluations").glob("*.json"):
        cut(path)
    assert {row["phase"] for row, _ in opened(run).rows()} == {0, 1, 2}


def test_a_page_without_trajectories(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    shutil.rmtree(run / "trajectories")
    for path in (run / "evaluations").glob("*.jsonl.gz"):
        path.unlink()
    page = opened(run)
    assert page.index["rows"] == 0
    assert page.runs[0]["trajectories"] == {"total": 0, "kept": 0, "how": "There are no trajectories to look at."}


def test_one_group_that_is_too_large_does_not_stop_the_others(tmp_path):
    run = made_run(tmp_path / "run", iterations=3)
    large = [trajectory(f"big-{n}", "big", [random.Random(n).randbytes(20_000).hex()], 1.0) for n in range(2)]
    write_lines(run / "trajectories" / "00001.jsonl.gz", [*large])
    page = opened(run, max_bytes=90_000)
    assert {iteration for iteration, _ in members(page)} == {2, 3}
