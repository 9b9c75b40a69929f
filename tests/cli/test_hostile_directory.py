"""Commands that start in a directory with a stranger's files import none of them, and neither do their children."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seeupo
from comparison.small_study import write_study
from seeupo.config.loader import recipe_to_toml
from seeupo.utils.python_process import python_command, safe_children, safe_environment
from training.small_runs import small

MODULES = ("filelock", "json", "torch", "pickle", "random", "socket", "multiprocessing", "typing", "click", "wandb")
PACKAGES = ("numpy", "vllm", "ray")
COMMANDS = """
import sys
from seeupo.cli import main
for line in sys.stdin.read().splitlines():
    print("$", line, flush=True)
    try:
        main(line.split())
    except SystemExit as end:
        if end.code:
            raise
"""
"""A program that runs commands one after another. As with `seeupo`, the directory of its file is on the path."""
ALGORITHM = """
from helper import CLIP
from seeupo.algorithms import GRPO
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Mine(GRPO):
    clip: tuple[float, float] = CLIP
"""
"""An algorithm of a file that the user trusts, which imports its neighbor."""
HELPER = "import json, numpy, torch\nCLIP = (0.25, 0.5)\n"
STUDY = """
recipe = "small.toml"
seeds = [5]
match = "none"

[arms.seeupo.algorithm]
name = "seeupo"

[arms.grpo.algorithm]
name = "mine.py:Mine"
"""
TINY = {
    "run": {"iterations": 1},
    "warm_start": None,
    "collect": {"tasks": 1, "group_size": 2},
    "evaluation": {"tasks": 1, "attempts": 1, "k": 1},
}


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Return a directory with hostile modules, as the working directory; its module `ran` lists those that ran."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\n"
    for name in PACKAGES:
        (folder / name).mkdir()
    for path in (*(f"{name}.py" for name in MODULES), *(f"{name}/__init__.py" for name in PACKAGES)):
        (folder / path).write_text(code)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return folder


def ran(folder):
    """Return the hostile modules that were imported."""
    marker = folder.parent / "ran"
    return sorted(set(marker.read_text().split())) if marker.exists() else []


def call(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_import_nothing_from_the_current_directory(hostile, tmp_path):
    call([sys.executable, "-c", "import wandb"])
    assert ran(hostile) == ["wandb"], "the modules of this test do not work"
    (tmp_path / "ran").unlink()
    write_study(hostile, STUDY, **TINY)
    (hostile / "mine.py").write_text(ALGORITHM)
    (hostile / "helper.py").write_text(HELPER)
    program = tmp_path / "bin" / "commands.py"
    program.parent.mkdir()
    program.write_text(COMMANDS)
    commands = [
        "recipes list",
        "models list",
        "envs list",
        "envs check pocket --tasks 1 --workers 1",
        "plan small.toml",
        "train small.toml --out run",
        "train --resume run --run.iterations 2",
        "eval run --tasks 1 --attempts 1 -k 1 --out result.json",
        "agents show --model run --max-turns 1",
        "report run",
        "export run exported",
        "compare study.toml --jobs 1 --out comparison --trust mine.py:Mine",
        "doctor",
    ]
    printed = call([sys.executable, str(program)], input="\n".join(commands))
    assert printed.count("$ ") >= len(commands)
    assert (hostile / "comparison" / "comparison.html").exists()
    assert ran(hostile) == []


def test_python_m_imports_nothing_from_the_current_directory(hostile):
    assert "tiny-pocket" in call([sys.executable, "-m", "seeupo", "recipes", "list"])
    assert "expert" in call([sys.executable, "-m", "seeupo", "envs", "check", "pocket", "--tasks", "1"])
    assert ran(hostile) == []


def test_children_of_children_import_nothing_from_the_current_directory(hostile):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'import wandb, json'!r}])"
    call(python_command("-c", child), env=safe_environment())
    assert ran(hostile) == []
    with safe_children():
        call([sys.executable, "-c", "import json"])
    assert ran(hostile) == []
    assert "PYTHONSAFEPATH" not in os.environ


def test_python_is_started_by_one_function():
    """A command that names the interpreter in another way would import from the current directory."""
    allowed = {
        "utils/python_process.py",
        "__init__.py",  # the message for an old Python
        "envs/pool/worker.py",  # whether a worker has this interpreter
        "envs/install.py",  # the path of an environment's interpreter
        "envs/pool/sandbox.py",  # a test of the sandbox with -I
        "distributed/ray_cluster.py",  # the interpreter of Ray's workers
    }
    package = Path(seeupo.__file__).parent
    roots = {package: package, Path(__file__).parents[2] / "studies": Path(__file__).parents[2]}
    users = {
        path.relative_to(base).as_posix()
        for root, base in roots.items()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert users == allowed


@pytest.mark.parametrize(("reference", "start"), [("mine:Mine", ["-P", "-m"]), ("mine.py:Mine", ["-m"])])
def test_trusted_code_is_found_beside_the_recipe_but_hides_nothing(hostile, reference, start):
    (hostile / "mine.py").write_text(ALGORITHM)
    (hostile / "helper.py").write_text(HELPER)
    (hostile / "small.toml").write_text(recipe_to_toml(small()))
    command = [sys.executable, *start, "seeupo", "train", "small.toml", "--dry-run", "--algorithm.name", reference]
    assert "clip = [0.25, 0.5]" in call(command)
    assert ran(hostile) == []
