"""The pages in docs/algorithms: sections, and costs against the calls of an engine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from algorithms.examples import SpyingEngine, table_engine
from seeupo.algorithms import ALGORITHMS, GRPO, GSPO, PPO, RLOO, ReinforcePP, SeeUPO
from seeupo.types import StepMetrics, turns_of
from studies.exact.problem import bandit

PAGES = Path(__file__).parents[2] / "docs/algorithms"
HEADINGS = (
    "Idea",
    "Formula",
    "When to use it",
    "Usage",
    "Metrics",
    "Implementation details",
    "Guarantees",
    "Source",
)
TURNS = 3


class CountingEngine(SpyingEngine):
    """An exact engine that counts calls, also those of a critic that learns nothing."""

    def __init__(self, inner):
        super().__init__(inner)
        self.capabilities = frozenset({"critic"})

    def values(self, trajectories):
        self.calls.append(("values", turns_of(trajectories)))
        tokens = [sum(len(turn.action_ids) for turn in t.turns) for t in trajectories]
        return [torch.linspace(0, 1, count + 1, dtype=torch.float64) for count in tokens]

    def step_critic(self, turns, loss, *, normalizer):
        self.calls.append(("step_critic", list(turns)))
        return StepMetrics(None, {"grad_norm": 1.0, "critic_loss": 1.0})

    def passes(self, *kinds):
        return sum(len(turns) for kind, turns in self.calls if kind in kinds)


def counted(algorithm):
    """Run one update on trajectories of three turns with nonzero advantages; return engine, number of turns, update."""
    rewards = torch.rand(2, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    engine = CountingEngine(table_engine(bandit(rewards)))
    trajectories = [
        replace(path, multiplicity=1.0) for path in engine.enumerate()
    ]  # leave-one-out needs multiplicity 1
    update = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(1))
    return engine, len(turns_of(trajectories)), update


def stated_costs():
    """Return the cells of the table under "Cost" in the overview, by the first cell: formulas, then the defaults."""
    section = (PAGES / "README.md").read_text().partition("\n## Cost\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*`\w+`) \| (.+) \| (.+) \| (.+) \| (.+) \|$", section, re.MULTILINE)
    return {first.replace("`", ""): cells for first, *cells in rows}


def evaluate(cells, letters):
    """Return the values of formulas, by kind of cost."""
    return {kind: eval(cell, letters) for kind, cell in zip(("forward", "backward", "steps"), cells, strict=True)}


def costs(name, options):
    """Passes and steps as an engine counts them, as the formulas state them, and as the defaults do."""
    algorithm = ALGORITHMS[name](**options)
    engine, all_turns, update = counted(algorithm)
    letters = {
        "E": algorithm.epochs,
        "B": algorithm.steps_per_turn if name == "seeupo" else algorithm.minibatches,
        "T": TURNS,
        "K": int("reference" in algorithm.needs),
    }
    kinds = [kind for kind, _ in engine.calls]
    counts = {
        "forward": engine.passes("current", "reference", "step") / all_turns,
        "backward": engine.passes("step") / all_turns,
        "steps": kinds.count("step"),
    }
    critic_counts = {
        "forward": engine.passes("values", "step_critic") / all_turns,
        "backward": engine.passes("step_critic") / all_turns,
        "steps": kinds.count("step_critic"),
    }
    assert update.metrics[-1].values["optimizer_steps"] == counts["steps"]
    models = {name: counts} | ({f"critic of {name}": critic_counts} if critic_counts["steps"] else {})
    stated = stated_costs()
    formulas = {model: evaluate(stated[model][:3], letters) for model in models}
    defaults = {model: evaluate(stated[model][3].split(", "), letters) for model in models}
    return models, formulas, defaults


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page(name):
    path = PAGES / f"{name}.md"
    assert path.exists(), f"add docs/algorithms/{name}.md; docs/algorithms/new-algorithm.md lists what it must contain"
    headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    missing = [heading for heading in HEADINGS if heading not in headings]
    assert not missing, f"add the sections {missing} to docs/algorithms/{name}.md"


@pytest.mark.parametrize(
    ("algorithm", "needs"),
    [
        (SeeUPO(), set()),
        (SeeUPO(kl_coef=0.002), {"reference"}),
        (PPO(), {"critic"}),
        (PPO(kl_coef=0.1), {"critic", "reference"}),
        (PPO(kl_reward_coef=0.1), {"critic", "reference"}),
        (GRPO(), {"reference"}),
        (GRPO(kl_coef=0.0), set()),
        (GSPO(), set()),
        (RLOO(kl_coef=0.1), {"reference"}),
        (ReinforcePP(), {"reference"}),
        (ReinforcePP(kl_coef=0.0), set()),
        (ReinforcePP(kl_coef=0.0, kl_reward_coef=0.1), {"reference"}),
    ],
)
def test_needs_are_what_an_update_uses(algorithm, needs):
    assert algorithm.needs == needs
    engine, _, _ = counted(algorithm)
    kinds = {kind for kind, _ in engine.calls}
    assert ("reference" in kinds) == ("reference" in needs)
    assert (not kinds.isdisjoint({"values", "step_critic"})) == ("critic" in needs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_default_cost_matches_the_engine_calls(name):
    counts, formulas, defaults = costs(name, {})
    for model, passes in counts.items():
        assert formulas[model] == pytest.approx(passes)
        assert defaults[model] == pytest.approx(passes)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_cost_with_other_options_matches_the_engine_calls(name, epochs, kl_coef):
    parts = "steps_per_turn" if name == "seeupo" else "minibatches"
    counts, formulas, _ = costs(name, {"epochs": epochs, "kl_coef": kl_coef, parts: 2})
    for model, passes in counts.items():
        assert formulas[model] == pytest.approx(passes)


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_kl_in_the_reward_costs_a_forward_pass(name):
    counts, formulas, _ = costs(name, {"kl_coef": 0.0, "kl_reward_coef": 0.1})
    assert counts[name] == pytest.approx(formulas[name])


def test_cost_of_turn_level_gspo_is_as_documented():
    per_turn = costs("gspo", {"level": "turn", "epochs": 2})[0]["gspo"]
    assert per_turn["forward"] == pytest.approx(2 + 2)
