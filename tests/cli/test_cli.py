import re

import pytest
from click.testing import CliRunner

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.common.cards import CARDS
from seeupo.cli import main
from seeupo.cli.algorithm_cards import options


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_version_and_help():
    assert run("--version").output.strip() == f"seeupo, version {seeupo.__version__}"
    assert "compare" in run("--help").output
    assert "--dry-run" in run("compare", "-h").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["compare", "smoke", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["compare", "smoke", "--speed", "9"], "No such option"),
        (["algorithms", "show"], "Missing argument 'NAME'"),
        (["train", "--dry-run", "--resume", "run"], "--resume"),
    ],
)
def test_usage_errors_print_no_traceback(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


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
