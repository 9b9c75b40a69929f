"""Run the checks that need `bfcl-eval` in its interpreter, and report each as a test."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import seeupo
from seeupo.envs.install import interpreter
from seeupo.envs.registry import EnvSpec

HERE = Path(__file__).parent
SOURCES = [Path(seeupo.__file__).parents[1], HERE.parents[1]]
CHECKS = [
    name
    for module in ("checks_official.py", "checks_protocol.py")
    for name in re.findall(r"^def (check_\w+)", (HERE / module).read_text(), flags=re.MULTILINE)
]


@pytest.fixture(scope="module")
def outcomes(bfcl: EnvSpec) -> dict[str, str]:
    program = [str(interpreter(bfcl)), str(HERE / "inside.py"), *map(str, SOURCES)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_inside(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes[check] == "passed", outcomes[check]
