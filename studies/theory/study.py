"""Measure all claims in parallel worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from studies.theory.backbones import gae_clipped, grae_clipped_bandit, grae_clipped_mdp, grae_reinforce
from studies.theory.conditions import stochastic_transitions, update_orders
from studies.theory.estimators import gae_bias_bound, grae_bias_and_gradient
from studies.theory.kl import kl_penalty
from studies.theory.mechanism import effect_of_m
from studies.theory.normalization import constant_shifts, group_deviation_drift, normalization_keeps_maximizer
from studies.theory.sequential import global_optimality, identity_behind_m, monotonic_improvement
from studies.theory.setting import Scale
from studies.theory.verdict import Claim
from studies.workers import run_in_workers

CLAIMS: dict[int, Callable[[Scale], Claim]] = {
    1: monotonic_improvement,
    2: global_optimality,
    3: gae_bias_bound,
    4: grae_bias_and_gradient,
    5: grae_reinforce,
    6: gae_clipped,
    7: grae_clipped_mdp,
    8: grae_clipped_bandit,
    9: group_deviation_drift,
    10: normalization_keeps_maximizer,
    11: identity_behind_m,
    12: constant_shifts,
    13: effect_of_m,
    14: update_orders,
    15: stochastic_transitions,
    16: kl_penalty,
}
SLOW = (13, 14, 1, 2, 16, 7)
"""Claims that take longest; started first to balance the workers."""


def measure(scale: Scale) -> Iterator[Claim]:
    """Measure every claim and yield each as soon as it is done. Closing the generator ends the workers."""
    order = sorted(CLAIMS, key=lambda number: SLOW.index(number) if number in SLOW else len(SLOW))
    yield from run_in_workers([partial(CLAIMS[number], scale) for number in order])
