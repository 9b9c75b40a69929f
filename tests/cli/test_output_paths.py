"""No output path of a command or a function replaces or follows what is not a regular file or a directory."""

import inspect
import os
import re
import socket
import stat
import sys

import click
import pytest
from click.testing import CliRunner

import seeupo
from seeupo.cli import main
from seeupo.errors import RunError
from seeupo.utils.output_paths import check_output
from studies import bfcl_results
from studies.__main__ import main as studies

FILES = {
    "report --out": "report no_run --out",
    "eval --out": "eval expert --env pocket --tasks 1 --attempts 1 -k 1 --out",
    "studies reliability --json": "studies reliability --seeds 1 --json",
}
FOLDERS = {
    "train --out": "train --run.iterations 1 --out",
    "compare --out": "compare smoke --jobs 1 --out",
    "export OUT": "export no_run",
    "studies theory --out": "studies theory --problems 4 --out",
    "studies credit --out": "studies credit --out",
    "studies reliability --folder": "studies reliability --seeds 1 --folder",
}
INPUTS = {
    "agents show": {"--env", "--model", "--checkpoint", "--task", "--option", "--trust"},
    "algorithms new": {"NAME"},  # as `envs new`
    "algorithms show": {"NAME"},
    "compare": {"STUDY", "--trust"},
    "data check": {"FILE", "--model"},
    "envs check": {"NAME", "--split", "--option"},
    "envs install": {"NAME"},
    "envs new": {"NAME"},  # tested below
    "envs play": {"NAME", "--task", "--split", "--option"},
    "eval": {
        "POLICY", "--checkpoint", "--env", "--split", "--option", "--trust", "--endpoint", "--model", "--compare",
    },
    "export": {"RUN"},
    "models check": {"NAME", "--prompt"},
    "models fetch": {"NAME"},
    "plan": {"RECIPE", "--trust"},
    "recipes show": {"NAME"},
    "report": {"RUNS"},
    "serve": {"POLICY", "--checkpoint"},
    "studies reliability": {"RECIPE"},
    "train": {"RECIPE", "--agent-program", "--tasks", "--resume", "--trust"},
}  # fmt: skip
"""Options and arguments with text that names no output."""
FUNCTIONS = {
    "compare": ("study",),
    "evaluate": ("policy", "environment", "split", "endpoint", "model"),
    "export": ("run_dir",),
    "resume": ("run_dir", "environment", "trust"),
    "train": ("recipe", "environment", "trust"),
    "write_report": ("runs",),
}
"""Parameters of public functions with text that name no output."""


def commands(group, prefix=""):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_output_of_a_command_is_listed():
    """A new option or argument with text belongs into `INPUTS`, or into `FILES` or `FOLDERS`, which are tested."""
    texts = set()
    for name, command in (*commands(main), *commands(studies, "studies ")):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path | click.File | type(click.STRING)):
                option = isinstance(parameter, click.Option)
                label = max(parameter.opts, key=len) if option else parameter.name.upper()
                texts.add(f"{name} {label}")
    inputs = {f"{name} {label}" for name, labels in INPUTS.items() for label in labels}
    assert texts == inputs | FILES.keys() | FOLDERS.keys()


def test_every_output_of_a_function_is_listed():
    outputs = {"compare": "out", "evaluate": "out", "export": "out", "train": "run_dir", "write_report": "out"}
    for name, inputs in FUNCTIONS.items():
        parameters = inspect.signature(getattr(seeupo, name)).parameters.values()
        paths = {parameter.name for parameter in parameters if "Path" in str(parameter.annotation)}
        assert paths - set(inputs) == ({outputs[name]} if name in outputs else set())


def make(path, kind):
    """Put something that is neither a file nor a directory at a path."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # the path of a socket is short
            server.bind(path.name)
    elif kind == "a device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # as /dev/full
        except OSError:
            pytest.skip("only root can make a device")
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a file":
        path.write_text("precious")
    else:
        path.symlink_to(path.with_name("nothing" if kind == "a broken link" else "precious"))


def invoke(line, path):
    words = line.split()
    group = studies if words[0] == "studies" else main
    return CliRunner().invoke(group, [*words[group is studies :], str(path)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text("precious")
    return tmp_path


KINDS = ("a pipe", "a socket", "a device", "a broken link")


@pytest.mark.parametrize("kind", [*KINDS, "a link", "a directory"])
@pytest.mark.parametrize("option", FILES)
def test_output_files_replace_regular_files_only(folder, option, kind):
    check_unchanged(FILES[option], folder / "out", kind)


@pytest.mark.parametrize("kind", [*KINDS, "a file", "a link"])
@pytest.mark.parametrize("option", FOLDERS)
def test_output_directories_replace_nothing(folder, option, kind):
    check_unchanged(FOLDERS[option], folder / "out", kind)


def check_unchanged(line, out, kind):
    make(out, kind)
    before = out.lstat()
    result = invoke(line, out)
    assert result.exit_code in (1, 2), result.output
    (message,) = [text for text in result.output.splitlines() if text.startswith("Error: ")]
    assert str(out) in message
    assert result.exit_code == 2 or re.search(
        r"is a (pipe|socket|device|symbolic link|directory|file); |already exists", message
    )
    after = out.lstat()
    assert (before.st_ino, before.st_mode, before.st_mtime) == (after.st_ino, after.st_mode, after.st_mtime)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out", "precious"]
    assert (out.parent / "precious").read_text() == "precious"


def test_the_file_of_a_study_of_bfcl_replaces_regular_files_only(folder, monkeypatch):
    make(folder / "out", "a pipe")
    monkeypatch.setattr(sys, "argv", ["bfcl_results", "no_run", "no_run", "--json", "out"])
    with pytest.raises(RunError, match="out is a pipe"):
        bfcl_results.main()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_environment_replaces_nothing(folder, kind):
    make(folder / "my_box.py", kind)
    result = CliRunner().invoke(main, ["envs", "new", "my_box"])
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert {path.name for path in folder.iterdir()} == {"my_box.py", "precious"}


def test_new_paths_files_and_directories_are_accepted(folder):
    for path, is_folder in ((folder / "new" / "path", True), (folder / "new", False), (folder, True)):
        assert check_output(path, folder=is_folder) == path
    assert check_output(folder / "precious").read_text() == "precious"
    (folder / "link").symlink_to(folder)
    assert check_output(folder / "link", folder=True) == folder / "link"
    for path in (folder / "precious" / "file", folder / "a\0b", folder / ("x" * 5000)):
        with pytest.raises(RunError, match="cannot be written: "):
            check_output(path)
