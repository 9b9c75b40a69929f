"""Settings of the study, and the scores of every method in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from studies.credit.engine import Groups, sample_groups
from studies.credit.measures import bias_and_variance, correlation, sign_agreement
from studies.credit.methods import METHODS, Updated, true_weights, update_at_kl
from studies.credit.problem import KINDS, CreditProblem, Kind, make_problem
from studies.theory.setting import Scale
from studies.workers import run_in_workers

TRAJECTORIES, MIN_GROUPS = 1024, 32
"""Sampled trajectories per setting, and the smallest number of groups that they form."""


@dataclass(frozen=True)
class Setting:
    """One problem and one size of groups and steps.

    Attributes:
        kind: Kind of the problem; see `make_problem`.
        turns: T.
        group_size: G.
        decisive: Decisive turn of a "decisive" problem, counted from 1.
        noise: Probability that chance, not the agent, decides.
        kl: KL of the update, of whole trajectories.
        step_reward: Total of the step rewards, beside the outcome.
    """

    kind: Kind
    turns: int = 6
    group_size: int = 16
    decisive: int = 3
    noise: float = 0.0
    kl: float = 0.1
    step_reward: float = 0.0

    @property
    def label(self) -> str:
        parts = [self.kind, f"T {self.turns}", f"G {self.group_size}"]
        if self.kind == "decisive":
            parts.append(f"turn {self.decisive} decides")
        if self.noise:
            parts.append(f"noise {self.noise:g}")
        parts.append(f"KL {self.kl:g}")
        if self.step_reward:
            parts.append(f"step rewards {self.step_reward:g}")
        return ", ".join(parts)


AXES: dict[str, tuple[Any, ...]] = {
    "turns": (3, 6, 9),
    "group_size": (4, 16, 64),
    "noise": (0.0, 0.1, 0.3),
    "kl": (0.01, 0.1, 0.4),
    "decisive": (1, 3, 6),
    "step_reward": (0.0, 0.5),
}
"""Values of each axis; the other axes keep their defaults."""


def settings() -> list[Setting]:
    """Return every kind of problem with each axis varied alone. Only decisive problems have a decisive turn."""
    return list(
        dict.fromkeys(
            replace(Setting(kind), **{axis: value})
            for kind in KINDS
            for axis, values in AXES.items()
            for value in values
            if axis != "decisive" or kind == "decisive"
        )
    )


@dataclass(frozen=True)
class Score:
    """Scores of a method in a setting.

    The weights are those of the update whose KL is that of the setting. Measures with the suffix `_after` compare them
    with the true advantage if the later turns act as they do after this update, the others with the true advantage
    under the policy that sampled.

    Attributes:
        sign: Share of turns whose weight has the sign of the true advantage; 0 counts half.
        correlation: Correlation of weights and true advantages over turns.
        bias: Squared bias as a multiple of the mean squared true advantage; see `bias_and_variance`.
        variance: Variance, as the same multiple.
        kl: KL of the update.
        gains: Gain of J by the update of each group.
    """

    sign: float | None
    correlation: float | None
    sign_after: float | None
    correlation_after: float | None
    bias: float | None
    variance: float | None
    kl: float
    gains: Sequence[float]

    @property
    def gain(self) -> float:
        return sum(self.gains) / len(self.gains)

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in asdict(self).items() if name != "gains"} | {"gain": self.gain}
        return {name: None if value is None else float(f"{value:.6g}") for name, value in values.items()}


@dataclass(frozen=True)
class Scores:
    """Scores of all methods in one setting, on the same trajectories."""

    setting: Setting
    methods: dict[str, Score]

    def to_json(self) -> dict[str, Any]:
        groups = len(next(iter(self.methods.values())).gains)
        methods = {name: score.to_json() for name, score in self.methods.items()}
        return {"label": self.setting.label, **asdict(self.setting), "groups": groups, "methods": methods}


def score_setting(setting: Setting, seed: int) -> Scores:
    """Sample groups once and score every method on them. MT-GRPO needs step rewards."""
    problem = make_problem(
        setting.kind,
        turns=setting.turns,
        decisive=setting.decisive - 1,
        noise=setting.noise,
        step_reward=setting.step_reward,
    )

    def generator(use: str) -> torch.Generator:
        return Scale(seed=seed).generator("credit", setting.label, use)

    number = max(MIN_GROUPS, TRAJECTORIES // setting.group_size)
    groups = sample_groups(problem, number, setting.group_size, generator("sample"))
    methods = [method for method in METHODS if method.name != "MT-GRPO" or setting.step_reward]
    scores = {}
    for method in methods:
        updated = update_at_kl(method, problem, groups, setting.kl, lambda: generator("update"))
        scores[method.name] = score(problem, groups, updated)
    return Scores(setting, scores)


def score(problem: CreditProblem, groups: Groups, updated: Updated) -> Score:
    """Score the weights and the result of one update."""
    start, new = problem.start[None], updated.log_policy.exp()
    truth = true_weights(problem, groups)
    after = problem.advantages(start, new).flatten(1)[groups.group, groups.cell]
    weights, count = updated.weights, groups.count
    bias, variance = bias_and_variance(weights, truth, groups) or (None, None)
    return Score(
        sign=sign_agreement(weights, truth, count),
        correlation=correlation(weights, truth, count),
        sign_after=sign_agreement(weights, after, count),
        correlation_after=correlation(weights, after, count),
        bias=bias,
        variance=variance,
        kl=updated.kl,
        gains=(problem.expected_return(new) - problem.expected_return(start)).tolist(),
    )


def measure(seed: int) -> Iterator[Scores]:
    """Score every setting in worker processes and yield each as soon as it is done."""
    largest_first = sorted(settings(), key=lambda setting: -setting.turns * setting.group_size)
    yield from run_in_workers([partial(score_setting, setting, seed) for setting in largest_first])
