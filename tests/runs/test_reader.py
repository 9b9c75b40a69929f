import gzip
import json
import os
import shutil

import pytest

from report.decoding import decoded
from report.made_runs import add_evaluation, cut, made_run
from seeupo.errors import RunError
from seeupo.runs.reader import read_run


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "run", iterations=3)


def missing(run):
    return " ".join(read_run(run).missing)


def test_complete_run_has_no_missing_parts(run):
    read = read_run(run)
    assert read.missing == []
    assert (read.name, read.ended, read.last_iteration) == ("run", True, 3)
    assert list(read.trajectories) == [1, 2, 3]
    assert [each.iteration for each in read.evaluations] == [0, 3]
    assert read.setting("model", "name") == "tiny"
    assert read.setting("no", "such") is None
    assert read.tokenizer == run / "policy" / "tokenizer.json"


def test_other_directories_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        with pytest.raises(RunError, match="run directory"):
            read_run(path)


def test_missing_parts_of_a_killed_run_are_named(run):
    (run / "summary.json").unlink()
    shutil.rmtree(run / "policy")
    (run / "evaluations" / "00003.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "iter')
    read = read_run(run)
    assert not read.ended
    assert len(read.records["iteration"]) == 3
    found = " ".join(read.missing)
    for part in (
        "after iteration 3 of 3",
        "last line of metrics.jsonl",
        "only one evaluation, before training",
        "tokenizer",
    ):
        assert part in found


def test_tokenizer_comes_from_the_newest_checkpoint_without_a_policy(run):
    for name in ("00002", "00003"):
        shutil.copytree(run / "policy", run / "checkpoints" / name)
    shutil.rmtree(run / "policy")
    assert read_run(run).tokenizer == run / "checkpoints" / "00003" / "tokenizer.json"


def test_damaged_metrics_lines_are_skipped(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    bad = [
        "",
        "{",
        "[]",
        '{"kind": 1, "iteration": 1}',
        '{"kind": "iteration", "iteration": -1}',
        '{"iteration": true}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines[:2] + bad + lines[2:]) + "\n")
    assert "6 damaged lines" in missing(run)
    assert [record["iteration"] for record in read_run(run).records["iteration"]] == [1, 2, 3]


def test_records_are_sorted_and_the_last_of_each_iteration_counts(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    again = json.dumps({**json.loads(lines[1]), "success": 0.125})
    (run / "metrics.jsonl").write_text("\n".join([*reversed(lines), again]) + "\n")
    records = read_run(run).records["iteration"]
    assert [record["iteration"] for record in records] == [1, 2, 3]
    assert records[0]["success"] == 0.125


@pytest.mark.parametrize("content", ["", "\n\n", None])
def test_missing_or_empty_metrics(run, content):
    (run / "metrics.jsonl").unlink() if content is None else (run / "metrics.jsonl").write_text(content)
    read = read_run(run)
    assert read.records == {}
    assert read.last_iteration == 3
    assert "no record of an iteration" in " ".join(read.missing)


@pytest.mark.parametrize("name", ["recipe.toml", "env_info.json", "summary.json", "evaluations/00003.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1", b"\xff\xfe", None])
def test_unreadable_files_are_named(run, name, content):
    (run / name).unlink() if content is None else (run / name).write_bytes(content)
    read = read_run(run)
    found = " ".join(read.missing)
    if name == "recipe.toml" and content == b"":
        assert read.recipe == {}
    elif name.startswith("evaluations"):
        assert "only one evaluation" in found
        assert content is None or f"{name} cannot be read" in found
    else:
        assert name in found


def test_evaluation_with_invalid_scores_is_skipped(run):
    path = run / "evaluations" / "00003.json"
    record = json.loads(path.read_text())
    record["episodes"][0]["score"] = 7
    path.write_text(json.dumps(record))
    assert [each.iteration for each in read_run(run).evaluations] == [0]


def test_iterations_without_trajectories_or_records_are_named(run):
    (run / "trajectories" / "00002.jsonl.gz").rename(run / "trajectories" / "00009.jsonl.gz")
    found = missing(run)
    assert "trajectories of iteration 2" in found
    assert "no record of iteration 9" in found
    shutil.rmtree(run / "trajectories")
    assert "no training trajectories" in missing(run)


def test_missing_evaluation_trajectories_are_named(run):
    (run / "evaluations" / "00000.jsonl.gz").unlink()
    assert "evaluation 00000" in missing(run)


def test_files_with_other_names_are_ignored(run):
    for name in (".00004.jsonl.gz", "00004.jsonl.gz.partial", "x.jsonl.gz"):
        (run / "trajectories" / name).write_bytes(b"")
    assert list(read_run(run).trajectories) == [1, 2, 3]


def test_first_and_last_readable_evaluations_are_compared(run):
    add_evaluation(run, 2, 0.5, tasks=12)
    assert [each.iteration for each in read_run(run).first_and_last] == [0, 3]
    cut(run / "evaluations" / "00000.json")
    cut(run / "evaluations" / "00003.json")
    first, last = read_run(run).first_and_last
    assert (first, last.iteration) == (None, 2)
    cut(run / "evaluations" / "00002.json")
    assert read_run(run).first_and_last == (None, None)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "summary.json", "trajectories/00002.jsonl.gz", "evaluations/00000.json"]
)
def test_pipes_are_not_read(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    assert name in " ".join(decoded(run).runs[0]["missing"])


def test_huge_numbers_are_left_out(run):
    def huge(record):
        if record["kind"] != "iteration":
            return record
        turns = [{**turn, "turn": 10**7, "grad_norm": 10**400} for turn in record["turns"]]
        return {**record, "episodes": 10**400, "sampler_gap": 10**400, "groups": 10**400, "turns": turns}

    lines = [huge(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert decoded(run).runs[0]["turn_maps"] == []


def test_rewards_that_overflow_have_no_interval(run):
    for path in (run / "trajectories").iterdir():
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        records = [json.loads(line) for line in lines[1:]]
        for record in records:
            record["reward"] = 1.7e308
        text = "\n".join([lines[0], *map(json.dumps, records)]) + "\n"
        path.write_bytes(gzip.compress(text.encode()))
    page = decoded(run)
    assert page.runs[0]["trajectories"]["kept"] > 0
    assert all(point[2:] == [None, None] for point in page.curve("reward")["training"])
