"""What is said about the algorithms is what they do, what the theory study has measured, and what the pages say."""

import ast
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from algorithms.examples import SpyingEngine, table_engine
from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.cards import FACTS, comparison
from seeupo.engines.exact.problem import bandit
from seeupo.types import StepMetrics, turns_of

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs/algorithms"
OTHERS = [name for name in ALGORITHMS if name != "seeupo"]  # whose pages repeat their facts word for word
TURNS = 3


class CountingEngine(SpyingEngine):
    """An exact engine with a critic that does nothing but be counted."""

    iteration = 0

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
    """The engine after one update on trajectories of three turns, none of which has an advantage of 0."""
    rewards = torch.rand(2, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    engine = CountingEngine(table_engine(bandit(rewards)))
    trajectories = [replace(path, multiplicity=1.0) for path in engine.enumerate()]  # leave-one-out takes no weights
    update = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(1))
    return engine, len(turns_of(trajectories)), update


def costs(name, options):
    """Passes and steps as an engine counts them, and as the facts have it."""
    algorithm = ALGORITHMS[name](**options)
    engine, all_samples, update = counted(algorithm)
    cost = FACTS[name].cost
    letters = {
        "E": algorithm.epochs,
        "B": algorithm.steps_per_turn if name == "seeupo" else algorithm.minibatches,
        "T": TURNS,
        "K": int(bool(algorithm.kl_coef or getattr(algorithm, "kl_reward_coef", 0))),
    }
    kinds = [kind for kind, _ in engine.calls]
    found = {
        "forward": engine.passes("current", "reference", "step") / all_samples,
        "backward": engine.passes("step") / all_samples,
        "steps": kinds.count("step"),
        "critic_forward": engine.passes("values", "step_critic") / all_samples,
        "critic_backward": engine.passes("step_critic") / all_samples,
        "critic_steps": kinds.count("step_critic"),
    }
    said = {key: eval(getattr(cost, key) or "0", letters) for key in found}
    assert update.metrics[-1].values["optimizer_steps"] == found["steps"]
    return found, said


def test_every_algorithm_has_facts():
    assert list(FACTS) == list(ALGORITHMS)
    for facts in FACTS.values():
        assert len(re.findall(r"\.(?: |$)", facts.idea)) == 2, facts.idea
        assert max(len(line) for line in facts.formula.splitlines()) <= 78, "the formula does not fit a terminal"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_cost_is_what_an_engine_is_asked_for(name):
    found, said = costs(name, {})
    assert found == pytest.approx(said)
    shown = [[float(eval(part, {"T": TURNS})) for part in text.split(" + ")] for text in FACTS[name].cost.by_default]
    critic = [[found["critic_forward"]], [found["critic_backward"]]] if found["critic_steps"] else [[], []]
    assert shown[0] == pytest.approx([found["forward"], *critic[0]])
    assert shown[1] == pytest.approx([found["backward"], *critic[1]])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_so_is_the_cost_with_other_options(name, epochs, kl_coef):
    parts = "steps_per_turn" if name == "seeupo" else "minibatches"
    found, said = costs(name, {"epochs": epochs, "kl_coef": kl_coef, parts: 2})
    assert found == pytest.approx(said)


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_kl_in_the_reward_costs_a_pass_too(name):
    found, said = costs(name, {"kl_coef": 0.0, "kl_reward_coef": 0.1})
    assert found == pytest.approx(said)


def test_what_pages_say_of_split_and_level():
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


@pytest.fixture(scope="module")
def claims():
    """The claims of the theory study as they were measured, by number."""
    found = json.loads((ROOT / "docs/theory/theory.json").read_text())["claims"]
    return {claim["id"]: claim for claim in found}


def test_verdicts_are_the_measured_ones(claims):
    for name, facts in FACTS.items():
        assert facts.verdicts.items() <= {number: claim["verdict"] for number, claim in claims.items()}.items(), name


def test_figures_are_the_measured_ones(claims):
    def figures(number, setting):
        (found,) = (check for check in claims[number]["figures"]["checks"] if check["setting"] == setting)
        return found["figures"]

    def falls(number, setting):
        found = figures(number, setting)
        return f"in {found['falls']} of {found['iterations']}"

    said = {name: facts.measured for name, facts in FACTS.items()}

    sweeps = [figures(1, f"{kind} maximizer, separate parameters") for kind in ("clipped", "unclipped")]
    assert sum(sweep["falls"] for sweep in sweeps) == 0
    assert f"none of {sum(sweep['iterations'] for sweep in sweeps)} iterations" in said["seeupo"]
    network = figures(1, "4 gradient steps (lr 10), shared network")
    assert f"fell in {network['falls'] / network['iterations']:.0%}" in said["seeupo"]
    short = figures(2, "reverse order, clipped maximizer until convergence (to within 1e-06)")
    assert f"in {short['problems'] - short['solved']} of {short['problems']} problems" in said["seeupo"]

    gap = figures(6, "J reaches J*: maximizer, separate parameters")["largest_gap_to_J*"]
    assert f"up to {gap:.3f} short" in said["ppo"]
    chain = figures(6, "J reaches J*: maximizer, separate parameters, safe 0.3 against 0.1 x 0.2")
    assert f"at {chain['J_end']:g} instead of {chain['J_best']:g}" in said["ppo"]
    assert falls(6, "J never falls: 4 gradient steps (lr 10), shared network") == "in 1 of 100"
    assert "once in 100 iterations" in said["ppo"]

    network = figures(7, "J falls at times: 8 gradient steps (lr 10), shared network")
    shared = falls(7, "J falls at times: 8 gradient steps (lr 30), one distribution per turn")
    assert f"{shared} updates with one distribution per turn" in said["grpo"]
    assert f"in {network['falls']} of {network['iterations']} with a network" in said["grpo"]
    assert f"(in {network['falls_with_true_advantages']} with true advantages)" in said["grpo"]
    cosine = figures(10, "the gradient turns: group normalization, shared network")["smallest_cosine"]
    assert f"up to {math.degrees(math.acos(cosine)):.0f} degrees" in said["grpo"]

    shared = figures(9, "J falls at times: maximizer, one distribution for all contexts")
    assert f"fell in {shared['falls'] / shared['iterations']:.0%}" in said["gspo"]
    assert figures(9, "J falls at times: maximizer, separate parameters")["falls"] == 0

    assert falls(5, "J never falls: shared network, exact gradient, lr 30") in said["rloo"]
    groups = "J never falls: separate parameters, sampled groups of 8, lr 10"
    assert f"{falls(5, groups)}, by at most {figures(5, groups)['largest_fall']:.4f}" in said["rloo"]

    changed = figures(12, "the clipped maximizer stays when 0.2 is subtracted from a whole batch, one turn")
    assert f"in {changed['changed']} of {changed['problems']} problems" in said["reinforce_pp"]


@pytest.mark.parametrize("name", OTHERS)
def test_pages_say_what_the_facts_say(name):
    page, facts = (PAGES / f"{name}.md").read_text(), FACTS[name]
    flat = " ".join(page.split())
    for text in (
        facts.idea,
        facts.advantage_here,
        facts.update_here,
        facts.proved,
        facts.conditions,
        facts.measured,
        facts.use,
        facts.source,
    ):
        assert text in flat
    assert "\n".join(f"    {line}".rstrip() for line in facts.formula.splitlines()) in page
    assert f"single-turn {facts.single_turn}, multi-turn {facts.multi_turn}" in flat
    for number, verdict in facts.verdicts.items():
        assert f"claim {number}: {verdict}" in flat
    cost = facts.cost
    assert f"| policy | {cost.forward} | {cost.backward} | {cost.steps} |" in page
    if cost.critic_forward:
        assert f"| critic | {cost.critic_forward} | {cost.critic_backward} | {cost.critic_steps} |" in page


def test_the_comparison_is_made_from_the_facts():
    page = (PAGES / "README.md").read_text()
    assert "\n".join(comparison()) in page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_pages_have_the_options_with_their_defaults(name):
    page = (PAGES / f"{name}.md").read_text()
    _, _, rest = page.partition("\n## Options\n")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", re.split(r"\n## ", rest)[0], re.MULTILINE)
    wanted = [(field.name, field.default) for field in fields(ALGORITHMS[name])]
    as_text = {"same as `ratio`": None}
    found = [(key, as_text[cell] if cell in as_text else ast.literal_eval(cell.strip("`"))) for key, cell in rows]
    assert found == wanted


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_metric_is_explained(name):
    pages = "\n".join((PAGES / page).read_text() for page in ("README.md", f"{name}.md"))
    explained = "".join(line.split("|")[1] for line in pages.splitlines() if line.startswith("| `"))
    if name == "seeupo":  # which explains those of the iteration in a sentence
        explained += pages.partition("For the iteration (`agent` is None):")[2]
    # What a local engine reports of a step besides the gradient.
    told = {"learning_rate", "objective"}
    for options in ({"kl_coef": 0.1}, {"kl_coef": 0.0}):
        _, _, update = counted(ALGORITHMS[name](**options))
        told |= {metric for entry in update.metrics for metric in entry.values}
    assert not [metric for metric in told if f"`{metric}`" not in explained]
