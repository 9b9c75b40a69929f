"""Algorithm cards agree with the calls an engine receives, the theory study, and the pages in docs/algorithms."""

import ast
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from algorithms.examples import SpyingEngine, table_engine
from seeupo.algorithms import ALGORITHMS, GRPO, GSPO, PPO, RLOO, ReinforcePP, SeeUPO
from seeupo.algorithms.common.cards import CARDS, comparison_table
from seeupo.types import StepMetrics, turns_of
from studies.exact.problem import bandit

ROOT = Path(__file__).parent.parent.parent.parent
PAGES = ROOT / "docs/algorithms"
HEADINGS = (
    "Idea",
    "Formula",
    "When to use it",
    "Usage",
    "Options",
    "Metrics",
    "Implementation details",
    "Guarantees",
    "Cost",
    "Source",
)
TURNS = 3


class CountingEngine(SpyingEngine):
    """An exact engine that counts calls, also those of a critic that learns nothing."""

    def __init__(self, inner):
        super().__init__(inner)
        self.capabilities = frozenset({"critic"})
        self.iteration = 1  # SeeUPO measures the drift in iteration 0

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


def costs(name, options):
    """Passes and steps as an engine counts them, and as the card states them."""
    algorithm = ALGORITHMS[name](**options)
    engine, all_turns, update = counted(algorithm)
    cost = CARDS[name].cost
    letters = {
        "E": algorithm.epochs,
        "B": algorithm.steps_per_turn if name == "seeupo" else algorithm.minibatches,
        "T": TURNS,
        "K": int("reference" in algorithm.needs),
    }
    kinds = [kind for kind, _ in engine.calls]
    found = {
        "forward": engine.passes("current", "reference", "step") / all_turns,
        "backward": engine.passes("step") / all_turns,
        "steps": kinds.count("step"),
        "critic_forward": engine.passes("values", "step_critic") / all_turns,
        "critic_backward": engine.passes("step_critic") / all_turns,
        "critic_steps": kinds.count("step_critic"),
    }
    stated = {key: eval(getattr(cost, key) or "0", letters) for key in found}
    assert update.metrics[-1].values["optimizer_steps"] == found["steps"]
    return found, stated


def test_every_algorithm_has_a_card():
    missing = [name for name in ALGORITHMS if name not in CARDS]
    assert not missing, f"add an AlgorithmCard for {missing} to CARDS in src/seeupo/algorithms/common/cards.py"
    assert list(CARDS) == list(ALGORITHMS), "CARDS and ALGORITHMS must have the same order"
    for name, card in CARDS.items():
        assert len(re.findall(r"\.(?: |$)", card.idea)) == 2, f"the idea of {name} must have two sentences"
        assert max(len(line) for line in card.formula.splitlines()) <= 78, f"the formula of {name} is too wide"


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
    found, stated = costs(name, {})
    assert found == pytest.approx(stated)
    shown = [[float(eval(part, {"T": TURNS})) for part in text.split(" + ")] for text in CARDS[name].cost.by_default]
    critic = [[found["critic_forward"]], [found["critic_backward"]]] if found["critic_steps"] else [[], []]
    assert shown[0] == pytest.approx([found["forward"], *critic[0]])
    assert shown[1] == pytest.approx([found["backward"], *critic[1]])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_cost_with_other_options_matches_the_engine_calls(name, epochs, kl_coef):
    parts = "steps_per_turn" if name == "seeupo" else "minibatches"
    found, stated = costs(name, {"epochs": epochs, "kl_coef": kl_coef, parts: 2})
    assert found == pytest.approx(stated)


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_kl_in_the_reward_costs_a_forward_pass(name):
    found, stated = costs(name, {"kl_coef": 0.0, "kl_reward_coef": 0.1})
    assert found == pytest.approx(stated)


def test_cost_with_split_and_level_is_as_documented():
    for name in ("ppo", "grpo", "reinforce_pp"):
        split, _ = costs(name, {"split": "turn"})
        whole, _ = costs(name, {})
        assert split["forward"] == whole["forward"]
        assert split["steps"] == whole["steps"] * TURNS
    for name in ("gspo", "rloo"):
        split, _ = costs(name, {"split": "turn", "epochs": 2, "minibatches": 2, "kl_coef": 0.0})
        assert split["forward"] == pytest.approx(2 + 2 + 2 * TURNS - 1 / 2)
    per_turn, _ = costs("gspo", {"level": "turn", "epochs": 2})
    assert per_turn["forward"] == pytest.approx(2 + 2)


def american(text):
    """The text in American spelling; stored results may have been written before it was used throughout."""
    return text.replace("maximis", "maximiz").replace("normalis", "normaliz")


@pytest.fixture(scope="module")
def claims():
    """The stored claims of the theory study, by number."""
    found = json.loads((ROOT / "studies/theory/theory.json").read_text())["claims"]
    return {claim["id"]: claim for claim in found}


def test_verdicts_match_the_theory_study(claims):
    for name, card in CARDS.items():
        assert card.verdicts.items() <= {number: claim["verdict"] for number, claim in claims.items()}.items(), name


def test_figures_match_the_theory_study(claims):
    def figures(number, setting):
        (found,) = (check for check in claims[number]["figures"]["checks"] if american(check["setting"]) == setting)
        return found["figures"]

    def falls(number, setting):
        found = figures(number, setting)
        return f"in {found['falls']} of {found['iterations']}"

    text = {name: card.measurements for name, card in CARDS.items()}

    sweeps = [figures(1, f"{kind} maximizer, separate parameters") for kind in ("clipped", "unclipped")]
    assert sum(sweep["falls"] for sweep in sweeps) == 0
    assert f"none of {sum(sweep['iterations'] for sweep in sweeps)} iterations" in text["seeupo"]
    network = figures(1, "4 gradient steps (lr 10), shared network")
    assert f"decreased in {network['falls'] / network['iterations']:.0%}" in text["seeupo"]
    short = figures(2, "reverse order, clipped maximizer until convergence (to within 1e-06)")
    assert f"in {short['problems'] - short['solved']} of {short['problems']} problems" in text["seeupo"]

    gap = figures(6, "J reaches J*: maximizer, separate parameters")["largest_gap_to_J*"]
    assert f"up to {gap:.3f} short" in text["ppo"]
    chain = figures(6, "J reaches J*: maximizer, separate parameters, safe 0.3 against 0.1 x 0.2")
    assert f"at {chain['J_end']:g} instead of {chain['J_best']:g}" in text["ppo"]
    assert falls(6, "J never falls: 4 gradient steps (lr 10), shared network") == "in 1 of 100"
    assert "once in 100 iterations" in text["ppo"]

    network = figures(7, "J falls at times: 8 gradient steps (lr 10), shared network")
    shared = falls(7, "J falls at times: 8 gradient steps (lr 30), one distribution per turn")
    assert f"{shared} updates with one distribution per turn" in text["grpo"]
    assert f"in {network['falls']} of {network['iterations']} with a network" in text["grpo"]
    assert f"(in {network['falls_with_true_advantages']} with true advantages)" in text["grpo"]
    cosine = figures(10, "the gradient turns: group normalization, shared network")["smallest_cosine"]
    assert f"up to {math.degrees(math.acos(cosine)):.0f} degrees" in text["grpo"]

    shared = figures(9, "J falls at times: maximizer, one distribution for all contexts")
    assert f"decreased in {shared['falls'] / shared['iterations']:.0%}" in text["gspo"]
    assert figures(9, "J falls at times: maximizer, separate parameters")["falls"] == 0

    assert falls(5, "J never falls: shared network, exact gradient, lr 30") in text["rloo"]
    groups = "J never falls: separate parameters, sampled groups of 8, lr 10"
    assert f"{falls(5, groups)}, by at most {figures(5, groups)['largest_fall']:.4f}" in text["rloo"]

    changed = figures(12, "the clipped maximizer stays when 0.2 is subtracted from a whole batch, one turn")
    assert f"in {changed['changed']} of {changed['problems']} problems" in text["reinforce_pp"]


def test_the_comparison_table_is_generated_from_the_cards():
    table = "\n".join(comparison_table())
    assert table in (PAGES / "README.md").read_text(), f"paste this table into docs/algorithms/README.md:\n{table}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_pages_list_all_options_with_their_defaults(name):
    page = (PAGES / f"{name}.md").read_text()
    _, _, rest = page.partition("\n## Options\n")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", re.split(r"\n## ", rest)[0], re.MULTILINE)
    wanted = [(field.name, field.default) for field in fields(ALGORITHMS[name])]
    as_text = {"same as `ratio`": None}
    found = [(key, as_text[cell] if cell in as_text else ast.literal_eval(cell.strip("`"))) for key, cell in rows]
    assert found == wanted, f"the table of options in docs/algorithms/{name}.md is out of date"
