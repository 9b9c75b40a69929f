import gzip
import json
import os
import shutil

import pytest

from report.made_runs import add_evaluation, cut, made_run
from report.decoding import decoded
from seeupo.errors import RunError
from seeupo.runs.reader import read_run


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path / "run", iterations=3)


def missing(run):
    return " ".join(read_run(run).missing)


def test_a_whole_run_lacks_nothing(run):
    read = read_run(run)
    assert read.missing == []
    assert (read.name, read.ended, read.last_iteration) == ("run", True, 3)
    assert list(read.trajectories) == [1, 2, 3]
    assert [each.iteration for each in read.evaluations] == [0, 3]
    assert read.setting("model", "name") == "tiny"
    assert read.setting("no", "such") is None
    assert read.tokenizer == run / "policy" / "tokenizer.json"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere", tmp_path / "file", tmp_path):
        with pytest.raises(RunError, match="name the folder of a run"):
            read_run(path)


def test_a_killed_run_says_how_far_it_came(run):
    (run / "summary.json").unlink()
    shutil.rmtree(run / "policy")
    (run / "evaluations" / "00003.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "iter')
    read = read_run(run)
    assert not read.ended
    assert len(read.records["iteration"]) == 3
    found = " ".join(read.missing)
    assert "it has 3 of 3 iterations" in found
    assert "last line of metrics.jsonl was cut off" in found
    assert "one evaluation only, before training" in found
    assert "no tokenizer" in found


def test_the_tokenizer_of_a_killed_run_is_in_its_newest_checkpoint(run):
    for name in ("00002", "00003"):
        shutil.copytree(run / "policy", run / "checkpoints" / name)
    shutil.rmtree(run / "policy")
    assert read_run(run).tokenizer == run / "checkpoints" / "00003" / "tokenizer.json"


def test_damaged_lines_are_left_out_and_the_rest_stays(run):
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
    assert "6 lines that cannot be read" in missing(run)
    assert [record["iteration"] for record in read_run(run).records["iteration"]] == [1, 2, 3]


def test_records_are_in_order_and_the_last_of_each_counts(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    again = json.dumps({**json.loads(lines[1]), "success": 0.125})
    (run / "metrics.jsonl").write_text("\n".join([*reversed(lines), again]) + "\n")
    records = read_run(run).records["iteration"]
    assert [record["iteration"] for record in records] == [1, 2, 3]
    assert records[0]["success"] == 0.125


@pytest.mark.parametrize("content", ["", "\n\n", None])
def test_empty_metrics(run, content):
    (run / "metrics.jsonl").unlink() if content is None else (run / "metrics.jsonl").write_text(content)
    read = read_run(run)
    assert read.records == {}
    assert read.last_iteration == 3
    assert "no record of an iteration" in " ".join(read.missing)


@pytest.mark.parametrize("name", ["recipe.toml", "facts.json", "summary.json", "evaluations/00003.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1", b"\xff\xfe", None])
def test_files_that_cannot_be_read_are_named(run, name, content):
    (run / name).unlink() if content is None else (run / name).write_bytes(content)
    read = read_run(run)
    found = " ".join(read.missing)
    if name == "recipe.toml" and content == b"":
        assert read.recipe == {}
    elif name.startswith("evaluations"):
        assert "one evaluation only" in found
        assert content is None or f"{name} cannot be read" in found
    else:
        assert name in found


def test_an_evaluation_with_scores_beyond_all_bounds_is_left_out(run):
    path = run / "evaluations" / "00003.json"
    record = json.loads(path.read_text())
    record["episodes"][0]["score"] = 7
    path.write_text(json.dumps(record))
    assert [each.iteration for each in read_run(run).evaluations] == [0]


def test_iterations_without_trajectories_or_records_are_named(run):
    (run / "trajectories" / "00002.jsonl.gz").rename(run / "trajectories" / "00009.jsonl.gz")
    found = missing(run)
    assert "trajectories of iteration 2 are not there" in found
    assert "no record of iteration 9" in found
    shutil.rmtree(run / "trajectories")
    assert "There are no trajectories of training." in missing(run)


def test_held_out_episodes_of_an_older_version(run):
    (run / "evaluations" / "00000.jsonl.gz").unlink()
    assert "held-out episodes of evaluation 00000 were not kept" in missing(run)


def test_files_of_other_names_are_no_trajectories(run):
    for name in (".00004.jsonl.gz", "00004.jsonl.gz.partial", "x.jsonl.gz"):
        (run / "trajectories" / name).write_bytes(b"")
    assert list(read_run(run).trajectories) == [1, 2, 3]


def test_which_evaluations_are_compared(run):
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
def test_what_is_no_file_is_not_waited_for(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    said = " ".join(opened(run).runs[0]["missing"])
    assert name in said


def test_numbers_beyond_all_bounds_are_left_out(run):
    def huge(record):
        if record["kind"] != "iteration":
            return record
        turns = [{**turn, "turn": 10**7, "grad_norm": 10**400} for turn in record["turns"]]
        return {**record, "episodes": 10**400, "sampler_gap": 10**400, "groups": 10**400, "turns": turns}

    lines = [huge(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = opened(run)
    assert page.runs[0]["turn_maps"] == []


def test_rewards_that_cannot_be_added_up_have_no_curve(run):
    for path in (run / "trajectories").iterdir():
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        records = [json.loads(line) for line in lines[1:]]
        for record in records:
            record["reward"] = 1.7e308
        text = "\n".join([lines[0], *map(json.dumps, records)]) + "\n"
        path.write_bytes(gzip.compress(text.encode()))
    assert opened(run).runs[0]["trajectories"]["total"] > 0
