"""The package can be imported where Unix-only modules are missing, and without torch where workers import it."""

import ast
import subprocess
import sys
from pathlib import Path

import seeupo

UNIX_ONLY = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
IMPORT_WORKER = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["numpy"] = None
import seeupo.envs.pool.serve, seeupo.envs.pocket, seeupo.envs.dataset, seeupo.errors, seeupo.types
print("imported")
"""


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
