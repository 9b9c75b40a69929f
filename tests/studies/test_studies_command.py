"""`python -m studies`, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from studies.__main__ import main
from waiting import wait_until

ROOT = Path(__file__).parents[2]
SOME_CLAIMS = """
import sys
from studies.__main__ import main
from studies.theory import CLAIMS
for number in set(CLAIMS) - {int(text) for text in sys.argv.pop(1).split(",")}:
    del CLAIMS[number]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["theory", "--seed", "-1"], "Invalid value for '--seed'"),
        (["theory", "--problems", "many"], "'many' is not a valid integer range"),
        (["theory", "--problems", "1"], "1 is not in the range x>=4"),
        (["theory", "--out", "/proc/nope/deep"], "/proc/nope/deep cannot be created"),
        (["credit", "--out", "/proc/nope/deep"], "/proc/nope/deep cannot be created"),
        (["credit", "--speed", "9"], "No such option"),
        (["teory"], "No such command 'teory'"),
        (["reliability", "no-such-recipe"], "no-such-recipe"),
    ],
)
def test_user_errors_print_no_traceback(arguments, message):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output


def theory(claims: str, *arguments: str) -> list[str]:
    """Return the command line of the theory study for a few claims."""
    return [sys.executable, "-c", SOME_CLAIMS, claims, "theory", *arguments]


def test_theory_end_to_end(tmp_path):
    """Worker processes, table, JSON, report."""
    command = theory("3,4,12", "--problems", "4", "--out", str(tmp_path / "theory"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "theory" / "theory.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == [3, 4, 12]
    assert all({"id", "claim", "setting", "figures", "verdict"} <= set(claim) for claim in claims)
    assert all(claim["title"] in done.stdout for claim in claims)
    assert "3 of 3" in done.stderr
    assert sorted(path.name for path in (tmp_path / "theory").iterdir()) == ["claims.md", "figures", "theory.json"]


def workers_left(group: int) -> bool:
    """Return whether any process of the group is alive; ended ones may stay listed until they are reaped."""
    listing = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows)


def test_an_interrupt_stops_the_workers_and_writes_nothing(tmp_path):
    process = subprocess.Popen(
        theory("4,13", "--out", str(tmp_path)),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "1 of 2" in process.stderr.readline()  # claim 4 is done, claim 13 takes far longer
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "Aborted" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not workers_left(process.pid))
