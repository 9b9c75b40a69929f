"""Whole comparisons of very small runs: what they write, and that killing them changes nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

import seeupo
from comparison.small_study import STUDY, write_study
from seeupo.cli import main
from seeupo.comparison import training_process
from seeupo.comparison.result_store import PACKED, TRAINING_REVISION, read_packed


def compare(path, *arguments):
    return CliRunner().invoke(main, ["compare", str(path), "--jobs", "1", *map(str, arguments)])


def table(out):
    """Return the tables of a comparison without what depends on the clock."""
    tables = json.loads((out / "comparison.json").read_text())
    del tables["time"]
    tables["sentences"] = [sentence for sentence in tables["sentences"] if "together" not in sentence]
    for arm in tables["arms"]:
        del arm["cost"]["seconds"]
    return tables


def results(out, folder="runs"):
    """Return the packed results of a comparison by file name."""
    return {Path(name).name: table for name, table in read_packed(out / PACKED).items() if name.startswith(folder)}


def unpack(out, target):
    """Write the results of a comparison as files of their own."""
    for name, table in read_packed(out / PACKED).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(json.dumps(table))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison that ran without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    path = write_study(folder)
    done = compare(path, "--out", folder / "out")
    assert done.exit_code == 0, done.output
    return path, folder / "out", done


def test_comparison_writes_tables_page_and_results(finished):
    _, out, done = finished
    tables = table(out)
    assert [arm["name"] for arm in tables["arms"]] == ["seeupo", "grpo"]
    assert tables["reference"] == "seeupo"
    assert done.stdout == (out / "comparison.md").read_text()
    assert "seeupo-comparison" not in done.stdout
    assert (out / "comparison.html").read_text().startswith("<!doctype html>")
    assert not list((out / "work").iterdir())
    names = {name.rpartition("-")[0] for name in results(out)}
    assert names == {f"{arm}-{seed}" for arm in ("seeupo", "grpo") for seed in (1, 5, 6)}
    assert not list((out / "runs").iterdir())
    assert (out / PACKED).stat().st_size < 4000
    assert str(out) not in json.dumps(results(out))


def test_arms_of_a_seed_start_from_the_same_policy_and_tasks(finished):
    _, out, _ = finished
    runs = results(out).values()
    for seed in (5, 6):
        first = {run["rewards"][0] for run in runs if run["seed"] == seed}
        assert len(first) == 1, seed
        assert len({len(run["rewards"]) for run in runs if run["seed"] == seed}) == 1
    assert len(results(out, "warm_starts")) == 3


def test_runs_record_the_weights_that_they_started_from(finished):
    _, out, _ = finished
    starts = {}
    for run in results(out).values():
        starts.setdefault(run["seed"], set()).add(run["start"])
    assert all(len(hashes) == 1 and "" not in hashes for hashes in starts.values())
    assert len(set.union(*starts.values())) == 3
    assert table(out)["different_starts"] == []


def test_arms_spend_equally(finished):
    comparison = table(finished[1])
    assert comparison["match"]["quantity"] == "optimizer_steps"
    assert comparison["arms"][0]["matched"] == {"algorithm.steps_per_turn": 1}
    assert comparison["arms"][1]["matched"]["algorithm.minibatches"] > 1
    assert all(0.5 < share < 1.5 for share in comparison["match"]["spent"].values())


def test_finished_runs_are_not_repeated(finished):
    path, out, done = finished
    before = (out / PACKED).stat().st_mtime_ns
    again = compare(path, "--out", out)
    assert again.stdout == done.stdout
    assert (out / PACKED).stat().st_mtime_ns == before
    assert "nothing left to run" in compare(path, "--out", out, "--dry-run").stdout


def test_python_and_the_command_line_give_the_same_tables(finished, capsys):
    path, out, _ = finished
    returned = seeupo.compare(path, out=out, progress=False)
    assert returned == json.loads((out / "comparison.json").read_text())
    assert capsys.readouterr() == ("", "")


def test_killed_comparison_resumes_and_gives_the_same_table(finished, tmp_path):
    path, out, _ = finished
    resumed = tmp_path / "out"
    command = [sys.executable, "-m", "seeupo", "compare", str(path), "--jobs", "1", "--out", str(resumed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list((resumed / "runs").glob("*.json"))) < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file.name: json.loads(file.read_text()) for file in (resumed / "runs").glob("*.json")}
    assert len(kept) >= 2
    done = compare(path, "--out", resumed)
    assert done.exit_code == 0, done.output
    repeated = results(resumed)
    assert {name: repeated[name] for name in kept} == kept  # with the seconds that they took
    assert table(resumed) == table(out)


def test_results_alone_are_enough_until_a_run_is_missing(finished, tmp_path):
    path, out, done = finished
    copied = tmp_path / "out"
    copied.mkdir()
    shutil.copy(out / PACKED, copied)
    assert compare(path, "--out", copied).stdout == done.stdout
    assert not (copied / "warm_starts").exists()
    unpack(out, copied)
    next((copied / "runs").glob("grpo-5-*.json")).unlink()
    (copied / PACKED).unlink()
    assert compare(path, "--out", copied).exit_code == 0
    assert table(copied) == table(out)
    policies = [file.name.rpartition("-")[0] for file in (copied / "warm_starts").iterdir() if file.is_dir()]
    assert policies == ["seed-5"]


@pytest.mark.parametrize("match", ["tokens", "seconds"])
def test_arms_are_matched_in_tokens_or_seconds(match, tmp_path):
    text = STUDY.replace('recipe = "small.toml"', f'recipe = "small.toml"\nmatch = "{match}"')
    text = text.replace("[1e-3, 3e-3]", "[1e-3]").replace("[5, 6]", "[5]")
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    tables = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert tables["match"]["quantity"] == match
    assert {key for arm in tables["arms"] for key in arm["matched"]} == {"algorithm.epochs"}
    epochs = [arm["matched"]["algorithm.epochs"] for arm in tables["arms"]]
    assert min(epochs) == 1  # the arm that spends most sets the target
    # Calibration: each arm with one epoch, and with two.
    names = [name.rpartition("-")[0] for name in results(tmp_path / "out")]
    assert all(names.count(f"{arm}-1") >= 2 for arm in ("seeupo", "grpo"))
    if match == "tokens":  # seconds depend on the machine
        spent = tables["match"]["spent"].values()
        assert max(spent) < 1.5 * min(spent)


def test_dry_run_trains_nothing(tmp_path):
    path = write_study(tmp_path)
    done = compare(path, "--out", tmp_path / "out", "--dry-run")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "out").exists()
    for text in ("warm starts  3", "tuning       4", "runs         4", "algorithm.kl_coef = 0.0", "minibatches"):
        assert text in done.stdout


def test_first_estimate_is_a_bound_where_calibration_may_be_shared(tmp_path):
    text = STUDY.replace("seeds = [5, 6]", "seeds = [5, 6]\nrun_seconds = 60", 1)
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out", "--dry-run")
    assert "at most 13 minutes for 13 runs" in done.stdout
    text = text.replace("run_seconds", 'match = "none"\nrun_seconds')
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out", "--dry-run")
    assert "about 11 minutes for 11 runs" in done.stdout


def test_runs_that_diverge_are_results(tmp_path):
    text = STUDY.replace("[1e-3, 3e-3]", "[1e38]").replace("[5, 6]", "[5]")
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert table(tmp_path / "out")["arms"][0]["stability"]["diverged"] == 1


def test_failure_of_a_run_is_one_message(tmp_path):
    text = f"{STUDY}\n[arms.grpo.optimizer]\ntrainable = ['x9']\n"
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "the run grpo-1" in done.stderr
    assert "'x9' matches no parameter" in done.stderr
    assert "Traceback" not in done.stderr


def test_comparison_that_fails_has_a_page_of_its_finished_seeds(finished, tmp_path):
    path, out, _ = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns("comparison.*", "logs", "work", PACKED))
    unpack(out, copy)
    result = next((copy / "runs").glob("grpo-6-*.json"))
    result.unlink()
    (copy / "work").mkdir()
    (copy / "work" / f"{result.stem}-{TRAINING_REVISION}").write_text("not a directory")
    done = compare(path, "--out", copy)
    assert done.exit_code == 1
    assert "the run grpo-6-" in done.stderr
    assert " is a file; expected a directory" in done.stderr
    assert "Traceback" not in done.output
    assert "1 of 2 seeds are in" in done.stderr
    assert table(copy)["seeds"] == [5]
    assert "Not finished: these are 1 of 2 seeds." in (copy / "comparison.md").read_text()
    assert "seed 5 |\n" in (copy / "comparison.md").read_text()


def test_what_a_killed_process_left_of_a_finished_run_is_removed(finished, tmp_path, monkeypatch):
    path, out, _ = finished
    copy, removed = tmp_path / "out", []
    shutil.copytree(out, copy)
    work = copy / "work" / "grpo-5-1"
    for folder in (work, copy / "work" / "kept"):
        (folder / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda folder, **_: removed.append(folder))  # the process is killed here
    training_process._remove(work)
    monkeypatch.undo()
    assert len(removed) == 1
    assert removed[0].is_dir()
    assert compare(path, "--out", copy).exit_code == 0
    assert [folder.name for folder in (copy / "work").iterdir()] == ["kept"]


def test_two_processes_cannot_run_the_same_comparison(tmp_path):
    path = write_study(tmp_path)
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"):
        done = compare(path, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "another process runs a comparison" in done.stderr


def test_code_that_the_recipe_names_needs_consent(tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    text = STUDY.replace(
        "[changes.evaluation]", f"[changes.environment]\nname = '{tmp_path}/mine.py:Factory'\n\n[changes.evaluation]"
    )
    done = compare(write_study(tmp_path, text), "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "--trust" in done.stderr
    assert not (tmp_path / "ran").exists()
