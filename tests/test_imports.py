"""The package can be imported where Unix-only modules are missing, and without torch where workers and light commands
import it.
"""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import seeupo
from seeupo.config.loader import read_recipe, recipe_names, recipe_to_table, recipe_to_toml
from seeupo.runs.run_directory import RunDirectory

UNIX_ONLY = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
IMPORT_WORKER = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["numpy"] = None
import seeupo.envs.pool.serve, seeupo.envs.pocket, seeupo.envs.dataset, seeupo.errors, seeupo.types
print("imported")
"""


MEASURED = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "light_start.py"))["COMMANDS"]
ERRORS_BEFORE_TORCH = [
    "train tiny-pocket --out /proc/run",
    "train tiny-pocket --out run",
    "train tiny-pocket --model.name smolm2",
    "train tiny-pocket --model.name ./missing",
    "train tiny-pocket --model.name owner/name",
    "train --resume run",
    "train --resume run --agent.max_turns 3",
    "eval missing",
    "eval owner/name --env pocket",
]
LIGHT_COMMANDS = [
    *(command for command in MEASURED if command not in ERRORS_BEFORE_TORCH),
    *(f"train {name} --dry-run" for name in recipe_names() if name not in ("custom", "tiny-pocket", "qwen3-14b-bfcl")),
    "envs new my_env",
    "algorithms new my_algorithm",
    "plan tiny-pocket --gpus 0",
    "train tiny-pocket --agent.max_turns six",
    "train tiny-pocket --algorithm.order backwards",
    "train tiny-pocket --algorithm.epochs 0",
    "train tiny-pocket --algorithm.name pppo",
    "train ./missing.toml",
    "compare missing",
    "train --resume missing",
    "train --resume run --agent.max_turn 3",
]
RUN_COMMAND = """
import sys
from seeupo.cli import main
try:
    main(sys.argv[1:])
finally:
    print("loaded:", *(name for name in ("torch", "numpy", "transformers") if name in sys.modules))
"""


def ran(command, tmp_path, monkeypatch):
    """Return a finished command and the large packages that it loaded; `run` is a run that needs a missing model."""
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", "")  # no GPU
    recipe = read_recipe("tiny-pocket", [("model.name", "missing")])
    RunDirectory.create(tmp_path / "run", recipe_to_toml(recipe), {"recipe": recipe_to_table(recipe)})
    arguments = [sys.executable, "-c", RUN_COMMAND, *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    return done, done.stdout.splitlines()[-1].removeprefix("loaded:").split()


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_commands_without_a_model_load_no_torch(command, tmp_path, monkeypatch):
    done, loaded = ran(command, tmp_path, monkeypatch)
    assert loaded == [], done.stdout + done.stderr


@pytest.mark.parametrize("command", ERRORS_BEFORE_TORCH)
def test_wrong_names_and_directories_are_errors_before_torch_is_loaded(command, tmp_path, monkeypatch):
    done, loaded = ran(command, tmp_path, monkeypatch)
    assert not {"torch", "transformers"} & set(loaded)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_recipe_is_an_error_before_torch_is_loaded_in_python_too():
    code = "import seeupo, sys\ntry: seeupo.train('tiny-poket')\nexcept seeupo.UserError: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_no_module_imports_unix_only_modules_when_it_is_loaded():
    found = []
    for path in Path(seeupo.__file__).parent.rglob("*.py"):
        if "appworld" not in path.parts:  # runs in a sandbox, which Windows does not have
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [f"{path.name}: {name}" for name in names if name in UNIX_ONLY]
    assert found == []


def test_workers_need_no_torch():
    done = subprocess.run([sys.executable, "-c", IMPORT_WORKER], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "imported", done.stderr
