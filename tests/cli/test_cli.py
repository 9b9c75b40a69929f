import json
import os
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.common.cards import CARDS
from seeupo.cli import main
from seeupo.cli.algorithm_cards import options
from waiting import wait_until


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
        (["theory", "--json", "missing/directory/t.json"], "missing/directory does not exist"),
        (["theory", "--json", ""], "Invalid value for '--json'"),
        (["theory", "--report", ""], "Invalid value for '--report'"),
        (["theory", "--json", "/proc/t.json"], "/proc/t.json cannot be written"),
        (["theory", "--report", "/proc/nope/deep"], "/proc/nope/deep cannot be written"),
        (["theory", "--speed", "9"], "No such option"),
        (["teory"], "No such command 'teory'"),
        (["algorithms", "show"], "Missing argument 'NAME'"),
        (["eval", "expert", "--env", "pocket", "--samples", "2"], "--samples was renamed to --attempts"),
        (["train", "--dry-run", "--resume", "run"], "--resume"),
    ],
)
def test_usage_errors_print_no_traceback(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_report_without_matplotlib_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("theory", "--report", str(tmp_path))
    assert result.exit_code == 2
    assert "pip install 'seeupo[figures]'" in result.output


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_of_algorithms_fits_the_terminal(columns):
    result = CliRunner().invoke(main, ["algorithms", "list"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert max(map(len, lines)) <= columns
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines[1:] if line and line.split()[0] in ALGORITHMS}
    assert list(rows) == list(ALGORITHMS)
    assert rows["ppo"] == ["GAE", "PPU", "token", "yes / yes", "3 + 2", "1 + 1"]
    assert rows["seeupo"] == ["GRAE", "HAML", "sequence", "- / yes", "3", "1"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_cards_are_complete_and_fit_the_terminal(name, columns):
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


def test_algorithm_cards_have_the_defaults_of_each_algorithm():
    gspo, rloo = ({option.name: option for option in options(name)} for name in ("gspo", "rloo"))
    assert gspo["clip"].default == "[0.0003, 0.0004]"
    assert rloo["clip"].default == '"none"'
    assert "(low, high)" in rloo["clip"].meaning  # documented by the base class
    assert gspo["level"].accepted == 'one of "trajectory", "turn"'


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "did you mean 'grpo'?"),
        ("PPO", "did you mean 'ppo'?"),
        ("reinforce++", "did you mean 'reinforce_pp'?"),
        ("x", ", ".join(ALGORITHMS)),
        ("x\n" * 99, ", ".join(ALGORITHMS)),
    ],
)
def test_an_unknown_algorithm_is_a_one_line_error_with_a_suggestion(name, message):
    result = run("algorithms", "show", name)
    assert result.exit_code == 1
    assert repr(name[:60]) in result.output
    assert message in result.output
    assert result.output.count("\n") == 1


SOME_CLAIMS = """
import sys
from seeupo.cli import main
from seeupo.studies.theory import CLAIMS
for number in set(CLAIMS) - {int(text) for text in sys.argv.pop(1).split(",")}:
    del CLAIMS[number]
main()
"""


def theory(claims: str, *arguments: str) -> list[str]:
    """Return the command line of `seeupo theory` for a few claims; `make wheel-check` runs all of them."""
    return [sys.executable, "-c", SOME_CLAIMS, claims, "theory", *arguments]


def test_theory_end_to_end(tmp_path):
    """Run the command as a user would: worker processes, table, JSON, report."""
    command = theory("3,4,12", "--problems", "4", "--json", "t.json", "--report", "report")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "t.json").read_text())["claims"]
    assert [claim["id"] for claim in claims] == [3, 4, 12]
    assert all({"id", "claim", "setting", "figures", "verdict"} <= set(claim) for claim in claims)
    assert all(claim["title"] in done.stdout for claim in claims)
    assert "3 of 3" in done.stderr
    assert (tmp_path / "report" / "claims.md").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "t.json"]


def workers_left(group: int) -> bool:
    """Return whether any process of the group is alive; ended ones may stay listed until they are reaped."""
    found = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in found.stdout.splitlines()]
    return any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows)


def test_an_interrupt_stops_the_workers_and_writes_nothing(tmp_path):
    process = subprocess.Popen(
        theory("4,13", "--json", "t.json"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
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
