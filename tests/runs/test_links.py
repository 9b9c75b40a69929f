"""Run directories of strangers: links and paths that lead elsewhere are neither read nor written."""

import gzip
import json
import os
import shutil

import pytest
from click.testing import CliRunner

from report.made_runs import made_run
from seeupo.cli import main
from seeupo.errors import RunError
from seeupo.runs.checkpoints import Checkpoints
from seeupo.runs.reader import read_run
from seeupo.runs.run_directory import RunDirectory

PARTS = (
    "recipe.toml",
    "env_info.json",
    "metrics.jsonl",
    "summary.json",
    ".lock",
    ".lock-owner",
    "trajectories",
    "trajectories/00001.jsonl.gz",
    "evaluations",
    "evaluations/00000.json",
    "evaluations/00000.jsonl.gz",
    "checkpoints",
    "policy",
    "policy/tokenizer.json",
    "tensorboard",
    "wandb",
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "run", iterations=1)


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def link(path, target):
    """Replace a part of a run by a link to a copy of it elsewhere, so that following it would work."""
    if path.is_dir():
        shutil.copytree(path, target)
        shutil.rmtree(path)
    elif path.exists():
        path.rename(target)
    else:
        target.mkdir() if "." not in path.name else target.write_text("secret")
    path.symlink_to(target)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", PARTS)
def test_links_in_a_run_are_refused_by_resume_and_eval(run, tmp_path, name):
    link(run / name, tmp_path / "elsewhere")
    before = contents(tmp_path)
    for command in (["train", "--resume", str(run), "--run.iterations", "2"], ["eval", str(run)]):
        result = CliRunner().invoke(main, command, env={"COLUMNS": "300"})
        assert result.exit_code == 1
        (message,) = result.output.strip().splitlines()
        assert message.startswith(f"Error: {run / name} is a symbolic link")
        assert contents(tmp_path) == before
    with pytest.raises(RunError, match="symbolic link"):
        RunDirectory.open(run)


@pytest.mark.parametrize("name", PARTS)
def test_the_report_does_not_follow_links(run, tmp_path, name):
    link(run / name, tmp_path / "elsewhere")
    before = contents(tmp_path)
    result = CliRunner().invoke(main, ["report", str(run)])
    assert result.exit_code == 0, result.output
    assert contents(tmp_path) == {**before, run / "report.html": (run / "report.html").read_bytes()}
    stored = read_run(run)
    if name in ("trajectories", "policy", "checkpoints", "evaluations"):
        assert f"{name} is a symbolic link and was not followed." in stored.missing
    if name == "evaluations":
        assert stored.evaluations == []
        assert stored.evaluation_trajectories == {}
    if name.startswith("policy"):
        assert stored.tokenizer is None
    if name == "recipe.toml":
        assert stored.recipe == {}
    if name == "metrics.jsonl":
        assert stored.records == {}


def test_the_report_does_not_write_through_a_link(run, tmp_path):
    for name in ("report.html", "report.html.partial"):
        (tmp_path / name).write_text("precious")
    (run / "report.html").symlink_to(tmp_path / "report.html")
    result = CliRunner().invoke(main, ["report", str(run)])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {run / 'report.html'} is a symbolic link; expected")
    assert result.output.count("\n") == 1
    (run / "report.html").unlink()
    (run / "report.html.partial").symlink_to(tmp_path / "report.html.partial")
    assert CliRunner().invoke(main, ["report", str(run)]).exit_code == 0
    assert [(tmp_path / name).read_text() for name in ("report.html", "report.html.partial")] == ["precious"] * 2
    assert (run / "report.html").stat().st_size > 10_000


def test_the_run_directory_itself_may_be_a_link(run, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    assert RunDirectory.open(tmp_path / "latest").metrics() == RunDirectory.open(run).metrics()
    assert read_run(tmp_path / "latest").tokenizer is not None


def test_pipes_and_huge_sparse_files_are_not_read(run):
    for name in ("metrics.jsonl", "summary.json", "trajectories/00001.jsonl.gz", "evaluations/00000.json"):
        (run / name).unlink()
    os.mkfifo(run / "metrics.jsonl")
    os.mkfifo(run / "trajectories" / "00001.jsonl.gz")
    for name in ("summary.json", "evaluations/00000.json"):
        with (run / name).open("wb") as file:
            file.truncate(10**12)
    result = CliRunner().invoke(main, ["report", str(run)])
    assert result.exit_code == 0, result.output
    for text in ("metrics.jsonl cannot be read", "summary.json cannot be read", "evaluations/00000.json cannot be"):
        assert text in result.output
    with pytest.raises(RunError, match=r"metrics.jsonl cannot be read: it is not a regular file"):
        RunDirectory.open(run).metrics()


def save(folder):
    (folder / "weights.bin").write_bytes(b"weights")


def test_checkpoints_that_are_links_are_damaged_and_never_followed(tmp_path):
    elsewhere = Checkpoints(tmp_path / "elsewhere", keep=2)
    elsewhere.write(20, {"n": 20}, save, best=True)
    Checkpoints(tmp_path / "run", keep=2).write(10, {"n": 10}, save)
    (tmp_path / "run" / "00020").symlink_to(tmp_path / "elsewhere" / "00020")
    before = contents(tmp_path / "elsewhere")
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    with pytest.warns(UserWarning, match="00020 is damaged: it is a symbolic link"):
        assert checkpoints.latest().iteration == 10
    checkpoints.write(30, {"n": 30}, save, best=True)
    assert contents(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/../../../secret", "manifest.json/../../../secret"])
def test_manifests_that_name_files_elsewhere_are_damaged(tmp_path, name):
    (tmp_path / "secret").write_bytes(b"weights")
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    manifest = checkpoints.write(10, {}, save) / "manifest.json"
    table = json.loads(manifest.read_text())
    table["files"][name] = table["files"]["weights.bin"]
    manifest.write_text(json.dumps(table))
    with pytest.warns(UserWarning, match="damaged: it has no file"):
        assert checkpoints.latest() is None


def test_a_manifest_that_is_a_link_or_a_pipe_is_damaged(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    for iteration in (10, 20):
        manifest = checkpoints.write(iteration, {}, save) / "manifest.json"
        if iteration == 10:
            manifest.rename(tmp_path / "manifest.json")
            manifest.symlink_to(tmp_path / "manifest.json")
        else:
            manifest.unlink()
            os.mkfifo(manifest)
    with pytest.warns(UserWarning, match=r"cannot be read \(it is (a symbolic link|not a regular file)"):
        assert checkpoints.latest() is None


def test_a_file_that_expands_a_thousandfold_is_named_by_the_report(run):
    line = (run / "trajectories" / "00001.jsonl.gz").read_bytes()
    (run / "trajectories" / "00001.jsonl.gz").write_bytes(line + gzip.compress(bytes(40_000_000)))
    result = CliRunner().invoke(main, ["report", str(run)])
    assert result.exit_code == 0
    assert "longer than the limit of 32 MB" in result.output
