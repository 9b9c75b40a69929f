"""The mistakes of the paper's public code, made on purpose: each must change the weights M by a measurable amount.

A mutant counts as detected only if M differs in number or claim 11 fails. An exception fails the test.
"""

import pytest
import torch

from algorithms.examples import network_engine, ragged_problem, sampled, table_engine
from seeupo.algorithms import SeeUPO, seeupo
from seeupo.algorithms.common.batch import Batch
from seeupo.core.carry import CarriedAdvantage
from studies.exact import GradientAscent
from studies.theory import Scale, Verdict
from studies.theory.sequential import identity_behind_m


class CheckingEngine:
    """Passes calls on to an engine, and compares the weights of each step with M, restated by trajectory id.

    M starts as the reward minus the group mean over the batch deviation. After a step on a turn it is multiplied by the
    product ratio of the turn's action, relative to the log-probs before the first step.
    """

    def __init__(self, engine, trajectories):
        self.engine, self.error, self.iteration = engine, 0.0, 0
        by_group = {}
        for trajectory in trajectories:
            by_group.setdefault(trajectory.group, []).append(trajectory.reward)
        centered = {t.id: t.reward - sum(by_group[t.group]) / len(by_group[t.group]) for t in trajectories}
        deviation = (sum(value**2 for value in centered.values()) / len(centered)) ** 0.5
        self.m = {name: value / deviation for name, value in centered.items()}
        self.old = {turn.key: engine.logprobs([turn])[0] for t in trajectories for turn in t.turns}

    def logprobs(self, turns, **options):
        return self.engine.logprobs(turns, **options)

    def step(self, turns, objective, **options):
        for turn in turns:
            self.error = max(self.error, abs(objective.advantages[turn.trajectory] - self.m[turn.trajectory]))
        metrics = self.engine.step(turns, objective, **options)
        for turn, new in zip(turns, self.engine.logprobs(turns), strict=True):
            self.m[turn.trajectory] *= float((new - self.old[turn.key]).sum().exp())
        return metrics


def error_of_m(make_engine) -> float:
    """Return the largest error of M in one sweep over trajectories of one to three turns."""
    engine = make_engine(ragged_problem(), GradientAscent(5.0))
    trajectories = sampled(engine)
    checking = CheckingEngine(engine, trajectories)
    SeeUPO(ratio="product").update(checking, trajectories)
    return checking.error


def claim_11_fails() -> bool:
    return identity_behind_m(Scale(problems=2)).verdict is Verdict.COUNTEREXAMPLE


ENGINES = [table_engine, network_engine]
LARGE = 0.01


@pytest.mark.parametrize("make_engine", ENGINES)
def test_m_is_exact_without_a_mutation(make_engine):
    assert error_of_m(make_engine) < 1e-12


def test_claim_11_holds_without_a_mutation():
    assert not claim_11_fails()


def test_m_not_updated(monkeypatch):
    monkeypatch.setattr(CarriedAdvantage, "absorb", lambda self, trajectories, log_ratio, *, clip=None: None)
    assert error_of_m(table_engine) > LARGE
    assert claim_11_fails()


def test_m_by_row_instead_of_by_trajectory(monkeypatch):
    monkeypatch.setattr(Batch, "members", lambda self, turns: torch.arange(len(turns)))
    assert error_of_m(table_engine) > LARGE
    assert claim_11_fails()


def test_m_by_row_of_a_batch_that_is_permuted_at_each_turn(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(Batch, "members", lambda self, turns: torch.randperm(len(turns), generator=generator))
    assert error_of_m(table_engine) > LARGE
    assert claim_11_fails()


def test_m_relative_to_the_policy_before_the_turns_own_update(monkeypatch):
    """With a shared network the updates of later turns have already moved the earlier ones."""
    right, step, latest = seeupo.action_log_ratio, CheckingEngine.step, {}

    def remembering(self, turns, objective, **options):
        latest.update({turn.key: row for turn, row in zip(turns, self.logprobs(turns), strict=True)})
        return step(self, turns, objective, **options)

    monkeypatch.setattr(CheckingEngine, "step", remembering)
    monkeypatch.setattr(seeupo, "action_log_ratio", lambda turns, new, old, ratio: right(turns, new, latest, ratio))
    assert error_of_m(network_engine) > LARGE


@pytest.mark.parametrize("make_engine", ENGINES)
def test_m_relative_to_another_policy(monkeypatch, make_engine):
    right = seeupo.action_log_ratio

    def to_uniform(turns, new, old, ratio):
        uniform = {key: torch.full_like(row, 0.5).log() for key, row in old.items()}
        return right(turns, new, uniform, ratio)

    monkeypatch.setattr(seeupo, "action_log_ratio", to_uniform)
    assert error_of_m(make_engine) > LARGE
    assert claim_11_fails()
