"""The mistakes of the paper's public code, made on purpose: each must turn a test or claim 11 red."""

import pytest
import torch

from algorithms.examples import network_engine, ragged_problem, table_engine
from algorithms.test_seeupo import assert_m_is_the_product_of_the_ratios_to_theta_k
from seeupo.algorithms import SeeUPO, seeupo
from seeupo.algorithms.batch import Batch
from seeupo.core import CarriedAdvantage
from seeupo.engines.exact import GradientAscent
from seeupo.studies.theory import Scale, Verdict
from seeupo.studies.theory.sequential import identity_behind_m

SMALL = Scale(problems=4)


def claim_11_is_green() -> bool:
    return identity_behind_m(SMALL).verdict is not Verdict.COUNTEREXAMPLE


def m_is_right(make_engine) -> bool:
    engine = make_engine(ragged_problem(), GradientAscent(5.0))
    try:
        assert_m_is_the_product_of_the_ratios_to_theta_k(engine, SeeUPO(ratio="product"))
    except (AssertionError, KeyError):
        return False
    return True


def test_the_code_as_it_is_is_green():
    assert claim_11_is_green()
    assert m_is_right(table_engine)
    assert m_is_right(network_engine)


def test_m_not_updated(monkeypatch):
    monkeypatch.setattr(CarriedAdvantage, "absorb", lambda self, trajectories, log_ratio, *, clip=None: None)
    assert not claim_11_is_green()
    assert not m_is_right(table_engine)


def test_m_by_row_instead_of_by_trajectory(monkeypatch):
    monkeypatch.setattr(Batch, "members", lambda self, turns: torch.arange(len(turns)))
    assert not claim_11_is_green()
    assert not m_is_right(table_engine)


def test_m_by_row_of_a_batch_that_is_permuted_at_each_turn(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(Batch, "members", lambda self, turns: torch.randperm(len(turns), generator=generator))
    assert not claim_11_is_green()
    assert not m_is_right(table_engine)


class WithMovingOldPolicy:
    """Passes everything on to an engine, and lets the ratio be taken to the policy before each turn's update."""

    latest: dict = {}  # noqa: RUF012

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def step(self, turns, objective, **options):
        rows = self.engine.logprobs(turns)
        self.latest.update({turn.key: row for turn, row in zip(turns, rows, strict=True)})
        return self.engine.step(turns, objective, **options)


def test_m_relative_to_the_policy_at_the_start_of_the_turn(monkeypatch):
    """With a shared network the later turns have moved the earlier ones before these are updated."""
    right = seeupo.action_log_ratio
    monkeypatch.setattr(
        seeupo,
        "action_log_ratio",
        lambda turns, new, old, ratio: right(turns, new, WithMovingOldPolicy.latest, ratio),
    )

    def spied(problem, update):
        return WithMovingOldPolicy(network_engine(problem, update))

    assert not m_is_right(spied)


@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
def test_m_relative_to_another_policy(monkeypatch, make_engine):
    right = seeupo.action_log_ratio

    def to_uniform(turns, new, old, ratio):
        uniform = {key: torch.full_like(row, 0.5).log() for key, row in old.items()}
        return right(turns, new, uniform, ratio)

    monkeypatch.setattr(seeupo, "action_log_ratio", to_uniform)
    assert not claim_11_is_green()
    assert not m_is_right(make_engine)
