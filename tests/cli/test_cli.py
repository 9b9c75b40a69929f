import re

import pytest
from click.testing import CliRunner

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.cli import main
from seeupo.config.algorithms import shipped_algorithms
from seeupo.config.toml import toml


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
    rows = {line.split()[0]: line.split()[1] for line in lines[1:] if not line.startswith(" ")}
    assert list(rows) == list(ALGORITHMS)
    assert (rows["ppo"], rows["grpo"]) == ("critic", "reference")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_shown_with_its_formula_and_all_options(name):
    result = CliRunner().invoke(main, ["algorithms", "show", name], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert max(map(len, lines)) <= 120
    entry = shipped_algorithms()[name]
    assert entry["description"] in " ".join(result.output.split())
    formula = [line for line in entry["method"].splitlines() if line.startswith("    ")]
    assert formula
    assert set(formula) <= set(lines)
    for option, schema in entry["properties"].items():
        row = rf"^  {option} +{re.escape(toml(schema['default']))} +{re.escape(schema['description'].split()[0])}"
        assert re.search(row, result.output, re.MULTILINE), option


def test_algorithms_are_shown_with_their_own_defaults():
    gspo, rloo = (" ".join(run("algorithms", "show", name).output.split()) for name in ("gspo", "rloo"))
    assert "clip [0.0003, 0.0004] " in gspo
    assert 'clip "none" Clip range (low, high)' in rloo  # documented by the base class
    assert '(one of "trajectory", "turn")' in gspo


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
