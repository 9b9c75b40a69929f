import random
import shutil

import pytest

from report.decoding import decoded, raw_chunks
from report.made_runs import cut, made_run, odd_run, trajectory, write_lines
from seeupo.report import selection
from seeupo.runs.trajectory_files import read_trajectories, to_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "run", iterations=12, groups=8, size=4)


def members(page, phase=0):
    """Return the ids of each group in the page."""
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


def test_small_run_is_kept_completely(run):
    page = decoded(run)
    assert members(page) == all_members(run)
    kept = page.runs[0]["trajectories"]
    assert (kept["total"], kept["kept"]) == (432, 432)
    assert "all 384 training" in kept["note"]
    assert "all 48 held-out" in kept["note"]
    assert page.index["rows"] == 432


def test_rows_match_their_bodies(run):
    whole = {each.id: each for path in (run / "trajectories").iterdir() for each in read_trajectories(path)}
    for row, body in decoded(run).rows():
        if row["phase"] == 0:
            each = whole[row["id"]]
            assert (row["task"], row["group"], row["reward"]) == (each.task, each.group, each.reward)
            assert (row["stop"], row["status"], row["kind"]) == (each.stop.value, "ok", "settle")
            assert row["advantage"] == pytest.approx(each.credit.advantage, rel=1e-4)
            assert row["turns"] == len(body["turns"]) == len(each.turns)
            responses = ["".join(text for text, _ in turn["tokens"]) for turn in body["turns"]]
            assert responses == [text.response for text in each.turn_texts]
        else:
            assert row["kind"] == "owed"
            assert row["iteration"] == {1: 0, 2: 12}[row["phase"]]


@pytest.mark.parametrize("max_bytes", [0, 15_000, 30_000, 60_000])
def test_limit_is_respected_and_groups_are_complete(run, max_bytes):
    chunks = raw_chunks([run], max_bytes)
    size = sum(len(content) for name, content in chunks.items() if name.startswith("bodies"))
    page = decoded(run, max_bytes=max_bytes)
    kept = page.runs[0]["trajectories"]
    assert size <= max_bytes + 1000  # the ends of the chunks
    assert kept["kept"] == page.index["rows"] < kept["total"] == 432
    assert (kept["kept"] > 0) == (max_bytes > 0)
    everything = all_members(run)
    for key, ids in members(page).items():
        assert ids == everything[key]
    assert "at random" in kept["note"]
    assert size >= 0.6 * max_bytes


def test_iterations_have_equal_shares(run):
    page = decoded(run, max_bytes=40_000)
    counts = {}
    for iteration, _ in members(page):
        counts[iteration] = counts.get(iteration, 0) + 1
    assert sorted(counts) == list(range(1, 13))
    assert max(counts.values()) <= min(counts.values()) + 3
    few = decoded(run, max_bytes=10_000)
    places = [group[-3:] for _, group in members(few)]
    assert len(places) < 48
    assert len(set(places)) > 5  # not always the first ones


def test_same_held_out_tasks_are_kept_before_and_after(run):
    partly = 0
    for max_bytes in range(500, 6_000, 500):
        page = decoded(run, max_bytes=max_bytes)
        before, after = ([group for _, group in members(page, phase)] for phase in (1, 2))
        assert before[: len(after)] == after[: len(before)]
        partly += 0 < len(before) < 12
    assert partly > 0


def test_output_does_not_depend_on_the_order_of_directory_listings(run, tmp_path, monkeypatch):
    first = raw_chunks([run], 40_000)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    listed = type(copy).iterdir
    monkeypatch.setattr(type(copy), "iterdir", lambda self: reversed(list(listed(self))))
    monkeypatch.chdir(tmp_path)
    chunks = raw_chunks([copy], 40_000)
    del first["overview"]
    assert {name: chunks[name] for name in chunks if name != "overview"} == first
    assert raw_chunks([copy], 40_000) == chunks


def test_several_runs_share_the_limit(run, tmp_path):
    other = made_run(tmp_path / "run", iterations=2, seed=1)
    page = decoded(run, other, max_bytes=40_000)
    assert [each["name"] for each in page.runs] == ["run", "run (2)"]
    assert [each["trajectories"]["kept"] for each in page.runs][1] == 60
    assert {row["run"] for row, _ in page.rows()} == {0, 1}
    first = decoded(run, max_bytes=10**6)
    assert first.runs[0]["trajectories"]["kept"] > page.runs[0]["trajectories"]["kept"]


def test_edge_cases_are_kept(tmp_path):
    page = decoded(odd_run(tmp_path / "odd"))
    assert page.runs[0]["missing"] == []
    found = {row["id"]: (row, body) for row, body in page.rows() if row["phase"] == 0}
    assert len(found) == 15
    failed, body = found["00001-900-0"]
    assert (failed["reward"], failed["status"], failed["stop"]) == (None, "failed", "failure")
    assert (body["group_mean"], body["group_rewards"]) == (None, [None, None])
    assert body["failure"] == "the worker was lost"
    assert found["00001-901-0"][1]["turns"] == []
    empty = found["00001-901-1"][1]["turns"]
    assert [turn["tokens"] == [] for turn in empty] == [True, False, True]
    assert empty[0]["credit"]["ratio"] == 1.0
    ten = found["00001-902-0"][1]["turns"]
    assert [turn["credit"]["position"] for turn in ten] == list(range(10, 0, -1))
    assert found["00001-904-0"][0]["advantage"] is None
    assert "half a character \ufffd alone" in page.index["lists"]["tasks"]
    assert "<script>alert(1)</script>" in page.index["lists"]["tasks"]


def test_damaged_files_lose_only_incomplete_groups(run, tmp_path):
    shutil.copytree(run, copy := tmp_path / "run")
    cut(copy / "trajectories" / "00002.jsonl.gz", 0.6)
    (copy / "trajectories" / "00003.jsonl.gz").write_bytes(b"no gzip")
    page = decoded(copy)
    missing = " ".join(page.runs[0]["missing"])
    assert "trajectories/00002.jsonl.gz is damaged after" in missing
    assert "trajectories/00003.jsonl.gz is damaged after its first 0 trajectories: " in missing
    whole, kept = all_members(run), members(page)
    assert {iteration for iteration, _ in kept} == set(range(1, 13)) - {3}
    assert all(ids == whole[key] for key, ids in kept.items())
    points = {point[0]: point for point in page.curve("success")["training"]}
    assert points[2][1] is not None
    assert points[2][2:] == [None, None]  # groups that are left may not represent the iteration
    assert points[4][2] is not None


def test_malformed_trajectories_are_left_out(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    good = trajectory("a", "g", ["done"], 1.0)
    (turn,) = to_json(good)["turns"]
    malformed = [
        {**to_json(trajectory(name, "g", ["done"], 0.0)), **change}
        for name, change in {
            "b": {"failure": {}},
            "c": {"turns": [1]},
            "d": {"credit": {"turns": [{}]}},
            "e": {"turns": [{**turn, "action": ["x"]}]},
            "f": {"turns": [{**turn, "action": [-1]}]},
        }.items()
    ]
    write_lines(run / "trajectories" / "00001.jsonl.gz", [good, *malformed])
    page = decoded(run)
    assert members(page) == {(1, "g"): ["a"]}
    assert page.body("a")["group_size"] == 6
    assert "5 trajectories are malformed" in " ".join(page.runs[0]["missing"])


def test_training_files_may_have_no_kinds(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    path = run / "trajectories" / "00001.jsonl.gz"
    write_lines(path, list(read_trajectories(path)))
    assert {row["kind"] for row, _ in decoded(run).rows() if row["phase"] == 0} == {""}


def test_held_out_trajectories_are_kept_if_the_evaluation_is_unreadable(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    for path in (run / "evaluations").glob("*.json"):
        cut(path)
    assert {row["phase"] for row, _ in decoded(run).rows()} == {0, 1, 2}


def test_page_without_trajectories(tmp_path):
    run = made_run(tmp_path / "run", iterations=1)
    shutil.rmtree(run / "trajectories")
    for path in (run / "evaluations").glob("*.jsonl.gz"):
        path.unlink()
    page = decoded(run)
    assert page.index["rows"] == 0
    kept = page.runs[0]["trajectories"]
    assert (kept["total"], kept["kept"]) == (0, 0)
    assert "no trajectories" in kept["note"]


def test_oversized_group_does_not_affect_other_iterations(tmp_path):
    run = made_run(tmp_path / "run", iterations=3)
    large = [trajectory(f"big-{n}", "big", [random.Random(n).randbytes(20_000).hex()], 1.0) for n in range(2)]
    write_lines(run / "trajectories" / "00001.jsonl.gz", [*large])
    page = decoded(run, max_bytes=60_000)
    assert {iteration for iteration, _ in members(page)} == {2, 3}


def test_group_that_would_expand_a_lot_is_left_out(tmp_path, monkeypatch):
    run = made_run(tmp_path / "run", iterations=1)
    path = run / "trajectories" / "00001.jsonl.gz"
    expected, others = all_members(run), list(read_trajectories(path))
    huge = [{**to_json(trajectory(f"big-{n}", "big", ["done"], 1.0)), "opening": "x" * 100_000} for n in range(3)]
    write_lines(path, [*huge, *others])
    monkeypatch.setattr(selection, "MAX_GROUP_BYTES", 250_000)
    page = decoded(run)
    assert members(page) == expected
    (text,) = [text for text in page.runs[0]["missing"] if "group" in text]
    assert text == "trajectories/00001.jsonl.gz has a group with more than 0.25 MB of text, which was left out."
