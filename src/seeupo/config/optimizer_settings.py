"""Settings of the optimizers of policy and critic."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from seeupo.config.option_types import FractionBelow1, NonNegative, NonNegativeInt, Options
from seeupo.utils.option_checks import OptionError

Schedule = Literal["constant", "linear", "cosine"]
Moments = Literal["shared", "per_agent"]
Backbone = Literal["own", "policy"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Options):
    """Optimizer settings.

    Attributes:
        learning_rate: Peak learning rate.
        schedule: Learning rate schedule over iterations: "constant", or "linear" or "cosine" decay to 0.
        warmup: Number of iterations of linear warmup.
        iterations: Number of iterations of the whole run; needed to decay.
        beta1: Momentum of AdamW; 0 disables it. Momentum carries one turn's update into the steps of the next turns, so
            the policy moves further than the carried advantage M records.
        beta2: Decay rate of AdamW's second moment.
        eps: Term that AdamW adds to the denominator.
        weight_decay: Weight decay of AdamW; norms and biases are not decayed.
        moments: "shared" by all turns, or "per_agent" for separate Adam moments per turn.
        max_grad_norm: Maximum gradient norm; "none" means no clipping.
        trainable: Regular expressions, each of which matches the name of a parameter; a parameter whose name matches
            none of them is frozen. Empty trains all.
    """

    learning_rate: NonNegative = 1e-6
    schedule: Schedule = "constant"
    warmup: NonNegativeInt = 0
    iterations: int | None = field(default=None, metadata={"set_by": "run.iterations"})
    beta1: FractionBelow1 = 0.9
    beta2: FractionBelow1 = 0.999
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.01
    moments: Moments = "shared"
    max_grad_norm: NonNegative | None = 1.0
    trainable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.trainable:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError("trainable", pattern, f"a regular expression ({error})") from None

    def rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        if iteration < self.warmup:
            return self.learning_rate * (iteration + 1) / (self.warmup + 1)
        if self.schedule == "constant" or self.iterations is None:
            return self.learning_rate
        done = min(1.0, (iteration - self.warmup) / max(1, self.iterations - self.warmup))
        return self.learning_rate * (1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True, kw_only=True)
class CriticOptimizerSettings(OptimizerSettings):
    """Optimizer settings of the critic.

    Attributes:
        trainable: Always empty, because all weights of the critic are trained.
    """

    learning_rate: NonNegative = 1e-5


@dataclass(frozen=True, kw_only=True)
class CriticSettings(Options):
    """Settings of the critic.

    Attributes:
        backbone: "own" trains a separate copy of the policy's layers; "policy" trains only a value head on the hidden
            states of the policy.
    """

    backbone: Backbone = "own"
    optimizer: CriticOptimizerSettings = field(default_factory=CriticOptimizerSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer.trainable:
            expected = "an empty list, because all weights of the critic are trained"
            raise OptionError("optimizer.trainable", self.optimizer.trainable, expected)


def trainable_names(patterns: Collection[str], names: Collection[str]) -> set[str]:
    """Return the names of parameters that match one of the patterns; all if there are none.

    Raises:
        ValueError: A pattern matches no name.
    """
    matches = {pattern: {name for name in names if re.search(pattern, name)} for pattern in patterns}
    for pattern, matched in matches.items():
        if not matched:
            examples = ", ".join(list(names)[:3])
            raise ValueError(
                f"optimizer.trainable: {pattern!r} matches no parameter; expected a pattern of names like {examples}"
            )
    return set().union(*matches.values()) if matches else set(names)
