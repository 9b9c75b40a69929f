"""The package can be imported where Unix-only modules are missing, and without torch where workers and light commands
import it.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seeupo
from seeupo.config.loader import recipe_names

UNIX_ONLY = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
IMPORT_WORKER = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["numpy"] = None
import seeupo.envs.pool.serve, seeupo.envs.pocket, seeupo.envs.dataset, seeupo.errors, seeupo.types
print("imported")
"""


LIGHT_COMMANDS = [
    "--help",
    "recipes list",
    "recipes show tiny-pocket",
    "recipes schema",
    "algorithms list",
    "algorithms show ppo",
    "envs list",
    "envs new my_env",
    "algorithms new my_algorithm",
    *(f"train {name} --dry-run" for name in recipe_names() if name != "custom"),
    "plan tiny-pocket --gpus 0",
    "train tiny-pocket --agent.max_turn 3",
    "train tiny-pocket --agent.max_turns six",
    "train tiny-pocket --algorithm.order backwards",
    "train tiny-pocket --algorithm.epochs 0",
    "train tiny-pocket --algorithm.name pppo",
    "train ./missing.toml",
    "compare missing",
]
RUN_COMMAND = """
import sys
from seeupo.cli import main
try:
    main(sys.argv[1:])
finally:
    print("loaded:", *(name for name in ("torch", "numpy", "transformers") if name in sys.modules))
"""


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_commands_without_a_model_load_no_torch(command, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no GPU
    arguments = [sys.executable, "-c", RUN_COMMAND, *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "loaded:", done.stdout + done.stderr
    assert "Traceback" not in done.stderr


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
