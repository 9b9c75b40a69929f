"""The directory of a comparison may come from a stranger: links are refused, and runs in it are checked."""

import re
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cli.hostile import TEXT, check_printed
from comparison.small_study import write_study
from seeupo.cli import main
from seeupo.comparison.result_store import TRAINING_REVISION, Store
from seeupo.comparison.training_process import train_run
from seeupo.config.loader import recipe_to_toml
from seeupo.errors import RunError
from seeupo.utils.plain_files import open_plain
from training.small_runs import small

PARTS = (
    ".lock",
    "logs",
    "logs/worker-0.log",
    "work",
    f"work/grpo-5-0123456789ab-{TRAINING_REVISION}",
    "runs",
    "runs/grpo-5-0123456789ab.json",
    "warm_starts",
    "warm_starts/seed-5-0123456789ab",
    "warm_starts/seed-5-0123456789ab/model.safetensors",
    "results.jsonl.gz",
    "results-2.jsonl.gz",
    "comparison.json",
    "comparison.md",
    "comparison.html",
)


@pytest.mark.parametrize("target", ["a file", "a folder", "nothing"])
@pytest.mark.parametrize("name", PARTS)
def test_links_in_the_directory_are_refused(tmp_path, name, target):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (out / name).parent.mkdir(parents=True)
    if target == "a folder":
        elsewhere.mkdir()
    elif target == "a file":
        elsewhere.write_text("precious")
    (out / name).symlink_to(elsewhere)
    for arguments in ([], ["--dry-run"]):
        command = ["compare", str(write_study(tmp_path)), "--out", str(out), "--jobs", "1", *arguments]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1
        (message,) = result.output.splitlines()
        assert message.startswith(f"Error: {out / name} is a symbolic link, which is not followed")
    if target == "a file":
        assert elsewhere.read_text() == "precious"
    assert target != "a folder" or list(elsewhere.iterdir()) == []
    assert elsewhere.exists() == (target != "nothing")


@pytest.mark.parametrize(("name", "kind"), [(".lock", "a directory"), ("runs", "a file"), ("logs", "a file")])
def test_parts_of_another_kind_are_refused(tmp_path, name, kind):
    if kind == "a file":
        (tmp_path / name).write_text("precious")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(RunError, match=f"{re.escape(name)} is {kind}; expected"):
        Store(tmp_path)


def test_the_directory_itself_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert Store(tmp_path / "link").path == tmp_path / "link"
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(RunError, match="symbolic link"):
        Store(tmp_path / "broken")


def test_a_log_is_opened_without_following_links(tmp_path):
    (tmp_path / "precious").write_bytes(b"precious\n")
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        open_plain(tmp_path / "log", append=True)
    for _ in range(2):
        with open_plain(tmp_path / "precious", append=True) as file:
            file.write(b"more\n")
    assert (tmp_path / "precious").read_bytes() == b"precious\nmore\nmore\n"


class Stopped(BaseException):
    """Ends a run, as a kill would."""


RECIPE = small(run={"iterations": 2}, evaluation={"every": 0, "tasks": 1})


def trained(folder, *, stop_at=None, recipe=RECIPE):
    """Train the requested run; return its messages and result, or only the messages if it is stopped."""
    job = {
        "arm": "grpo",
        "seed": 3,
        "settings": {},
        "recipe": recipe_to_toml(recipe),
        "policy": None,
        "keep_policy": None,
        "work": str(folder / "work" / "grpo-3"),
        "result": str(folder / "runs" / "grpo-3.json"),
        "keep_run": False,
        "trust": [],
        "unsandboxed": False,
    }
    messages = []

    def send(message):
        if message["text"].startswith("iteration"):
            messages.append(message["text"])
        if message["text"] == stop_at:
            raise Stopped

    if stop_at is not None:
        with pytest.raises(Stopped):
            train_run(job, send)
        return messages
    train_run(job, send)
    return messages


def rewards(folder):
    return re.search(r'"rewards": \[.*?\]', (folder / "runs" / "grpo-3.json").read_text())[0]


def test_a_stopped_run_is_resumed_only_with_the_requested_recipe(tmp_path, capsys):
    whole, resumed, forged = (tmp_path / name for name in ("whole", "resumed", "forged"))
    assert trained(whole) == ["iteration 1", "iteration 2"]
    trained(resumed, stop_at="iteration 2")
    assert trained(resumed) == ["iteration 2"]
    assert capsys.readouterr().err == ""
    # A stranger's run of another recipe under the name of the requested one.
    other = replace(RECIPE, optimizer=replace(RECIPE.optimizer, learning_rate=0.5))
    trained(forged, stop_at="iteration 2", recipe=other)
    assert trained(forged) == ["iteration 1", "iteration 2"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be resumed and starts again: optimizer.learning_rate: the run used 0.5, you asked for 0.001" in line
    assert rewards(whole) == rewards(resumed) == rewards(forged)


def test_text_of_a_strangers_run_is_one_line_of_the_log(tmp_path, capsys):
    trained(tmp_path, stop_at="iteration 1")
    work = tmp_path / "work" / "grpo-3"
    for recipe in (replace(RECIPE, model=replace(RECIPE.model, name=TEXT.replace("\ud800", ""))), None):
        text = "a = 1\x1b[2J\nError: fake" if recipe is None else recipe_to_toml(recipe)
        (work / "recipe.toml").write_text(text)
        trained(tmp_path, stop_at="iteration 1")
        printed = check_printed(capsys.readouterr().err.encode())
        assert printed.count("\n") == 1
        assert "starts again" in printed


def test_links_in_a_stopped_run_are_not_followed(tmp_path, capsys):
    trained(tmp_path, stop_at="iteration 2")
    work = tmp_path / "work" / "grpo-3"
    shutil.copytree(work / "trajectories", tmp_path / "precious")
    shutil.rmtree(work / "trajectories")
    (work / "trajectories").symlink_to(tmp_path / "precious")
    files = {path: path.read_bytes() for path in (tmp_path / "precious").iterdir()}
    assert files
    assert trained(tmp_path) == ["iteration 1", "iteration 2"]
    assert "is a symbolic link" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "precious").iterdir()} == files
