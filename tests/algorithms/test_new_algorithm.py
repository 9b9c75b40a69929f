"""The code in docs/algorithms/new-algorithm.md works as it is written there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from algorithms.examples import network_engine, ragged_problem, sampled, table_engine, weights_of, wordy_problem
from seeupo.algorithms import ALGORITHMS
from seeupo.cli import main
from seeupo.config.algorithms import algorithm_entry, shipped_algorithms
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.training.run import train
from studies.exact import GradientAscent
from training.small_runs import small

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/algorithms/new-algorithm.md"


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The page's algorithm, with its file written and its registry line executed."""
    code, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "reinforce.py").write_text(code)
    spec = importlib.util.spec_from_file_location("reinforce", tmp_path / "reinforce.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reinforce", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ALGORITHMS, "reinforce", None)  # so that monkeypatch removes it afterwards
    exec(line, {"ALGORITHMS": ALGORITHMS, "Reinforce": module.Reinforce})
    monkeypatch.setitem(shipped_algorithms(), "reinforce", algorithm_entry(module.Reinforce))
    return module.Reinforce


def test_the_example_is_one_small_file_and_one_line():
    code, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([row for row in code.splitlines() if row.strip()]) < 30
    assert len(line.splitlines()) == 1


def test_the_example_trains_from_a_recipe(registered, tmp_path):
    (tmp_path / "small.toml").write_text(recipe_to_toml(small(run={"iterations": 2})))
    overrides = [("algorithm.name", "reinforce"), ("algorithm.minibatches", "2")]
    recipe = read_recipe(str(tmp_path / "small.toml"), overrides)
    assert recipe.algorithm.build() == registered(minibatches=2)
    result = train(recipe, run_dir=tmp_path / "run")
    assert result.reason == "2 iterations done"
    assert result.summary["optimizer_steps"] > 0
    assert 'name = "reinforce"' in (tmp_path / "run" / "recipe.toml").read_text()


@pytest.mark.parametrize("make", [table_engine, network_engine])
@pytest.mark.parametrize("problem", [ragged_problem(), wordy_problem()], ids=["ragged", "wordy"])
def test_the_first_step_is_the_gradient_of_j(registered, make, problem):
    engine, rate = make(problem, GradientAscent(1e-3)), 1e-3
    parameters = list(engine.policy.parameters().values())
    expected = torch.autograd.grad(problem.expected_return(engine.policy.log_probs()), parameters)
    before = weights_of(engine).clone()
    registered().update(engine, engine.enumerate())
    moved = (weights_of(engine) - before) / rate
    torch.testing.assert_close(moved, torch.cat([part.flatten() for part in expected]), rtol=1e-9, atol=1e-12)


def test_the_order_of_the_trajectories_does_not_matter(registered):
    ends = []
    for reverse in (False, True):
        engine = network_engine(ragged_problem())
        trajectories = sampled(engine)
        registered(epochs=2).update(engine, trajectories[::-1] if reverse else trajectories)
        ends.append(weights_of(engine))
    torch.testing.assert_close(*ends)


def test_the_page_names_existing_files_and_tests():
    page = PAGE.read_text()
    for path, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page):
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), test


def test_the_example_is_listed_and_shown(registered):
    listed = CliRunner().invoke(main, ["algorithms", "list"])
    assert re.search(r"^reinforce +REINFORCE", listed.output, re.MULTILINE)
    shown = CliRunner().invoke(main, ["algorithms", "show", "reinforce"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^ +clip +\"none\" +Clip range", shown.output, re.MULTILINE)
