import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.cards import CARDS
from seeupo.cli import main
from seeupo.cli.algorithm_cards import options


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_version_and_help():
    assert run("--version").output.strip() == f"seeupo, version {seeupo.__version__}"
    assert "theory" in run("--help").output
    assert "--problems" in run("theory", "-h").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["theory", "--seed", "-1"], "Invalid value for '--seed'"),
        (["theory", "--problems", "many"], "'many' is not a valid integer range"),
        (["theory", "--problems", "1"], "1 is not in the range x>=4"),
        (["theory", "--json", "missing/folder/t.json"], "missing/folder is not a folder; make it first"),
        (["theory", "--json", ""], "it must not be empty"),
        (["theory", "--report", ""], "it must not be empty"),
        (["theory", "--json", "/proc/t.json"], "/proc/t.json cannot be written"),
        (["theory", "--report", "/proc/nope/deep"], "/proc/nope/deep cannot be written"),
        (["theory", "--speed", "9"], "No such option"),
        (["teory"], "No such command 'teory'"),
        (["algorithms", "show"], "Missing argument 'NAME'"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_report_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("theory", "--report", str(tmp_path))
    assert result.exit_code == 2
    assert "pip install 'seeupo[figures]'" in result.output


@pytest.mark.parametrize("columns", [80, 120])
def test_algorithms_are_listed_within_the_terminal(columns):
    result = CliRunner().invoke(main, ["algorithms", "list"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert max(map(len, lines)) <= columns
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines[1:] if line and line.split()[0] in ALGORITHMS}
    assert list(rows) == list(ALGORITHMS)
    assert rows["ppo"] == ["GAE", "PPU", "token", "yes / yes", "3 + 2", "1 + 1"]
    assert rows["seeupo"] == ["GRAE", "HAML", "sequence", "- / yes", "4 - 1/T", "1"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_everything_about_an_algorithm_is_shown(name, columns):
    result = CliRunner().invoke(main, ["algorithms", "show", name], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert max(map(len, lines)) <= columns
    card, flat = CARDS[name], " ".join(result.output.split())
    for text in (card.title, card.idea, card.advantage_details, card.guarantees, card.conditions, card.measurements):
        assert text in flat
    for text in (card.use_when, card.source, card.cost.forward, card.cost.steps, card.cost.critic_forward):
        assert text in flat
    for line in card.formula.splitlines():
        assert f"  {line}".rstrip() in lines
    for option in options(name):
        assert re.search(rf"^  {option.name} +{re.escape(option.default)}  ", result.output, re.MULTILINE), option
        assert option.meaning, option


def test_options_of_an_algorithm_are_told_with_their_own_defaults():
    gspo, rloo = ({option.name: option for option in options(name)} for name in ("gspo", "rloo"))
    assert gspo["clip"].default == "[0.0003, 0.0004]"
    assert rloo["clip"].default == '"none"'
    assert "(low, high)" in rloo["clip"].meaning  # documented by the base class
    assert gspo["level"].accepted == 'one of "trajectory", "turn"'


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "there is no algorithm 'grop'; did you mean 'grpo'?"),
        ("PPO", "there is no algorithm 'PPO'; did you mean 'ppo'?"),
        ("reinforce++", "there is no algorithm 'reinforce++'; did you mean 'reinforce_pp'?"),
        ("x", f"there is no algorithm 'x'; there are: {', '.join(ALGORITHMS)}"),
        ("x\n" * 99, "there is no algorithm 'x"),
    ],
)
def test_an_unknown_algorithm_is_one_line(name, message):
    result = run("algorithms", "show", name)
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {message}")
    assert result.output.count("\n") == 1


def test_theory_end_to_end(tmp_path):
    """The command as a user runs it: worker processes, table, JSON, report."""
    done = subprocess.run(
        [sys.executable, "-m", "seeupo", "theory", "--problems", "4", "--json", "t.json", "--report", "report"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "t.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == list(range(1, 14))
    assert all({"id", "claim", "setting", "figures", "verdict"} <= set(claim) for claim in claims)
    assert "The paper's claims, measured" in done.stdout
    assert "13 of 13" in done.stderr
    assert (tmp_path / "report" / "claims.md").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "t.json"]


def workers_left(group: int) -> bool:
    """Whether any process of the group is alive; ended ones may stay listed until they are reaped."""
    found = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in found.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows)


def test_an_interrupt_ends_the_workers_and_writes_nothing(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "seeupo", "theory", "--json", "t.json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "1 of 13" in process.stderr.readline()  # the first claim is there, the others are being measured
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Aborted" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 20
    while workers_left(process.pid):
        assert time.monotonic() < deadline, "worker processes outlived the interrupt"
        time.sleep(0.1)
