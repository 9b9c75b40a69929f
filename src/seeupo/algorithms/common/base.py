"""Options that all algorithms share, and the optimizer steps and metrics of all except SeeUPO.

An algorithm's own file defines its advantages and the ratio that it clips.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs, logprobs_by_key
from seeupo.algorithms.common.behavior import behavior_logprobs, importance_metrics, importance_weights
from seeupo.algorithms.common.objective import RatioObjective
from seeupo.algorithms.common.records import (
    TakenSteps,
    iteration_metrics,
    mean_of_steps,
    turn_metrics,
    turn_record,
    with_credit,
)
from seeupo.config.algorithms import REFERENCE_OPTIONS
from seeupo.config.option_types import Clip, NonNegative, Options, PositiveInt, Range
from seeupo.protocols import Need, TrainEngine
from seeupo.types import ON_POLICY, Behavior, StepMetrics, Trajectory, Turn, TurnKey, Update

Minibatches = Annotated[float, Range(1)]


class ObjectiveInputs(TypedDict):
    """Arguments of an objective that stay fixed during an iteration."""

    old: LogProbs
    importance: LogProbs
    reference: LogProbs
    multiplicities: dict[str, float]
    clip: Clip | None
    kl_coef: float
    entropy_coef: float


@dataclass(frozen=True, kw_only=True)
class RatioAlgorithm(Options):
    """Options of all algorithms.

    Attributes:
        clip: Clip range (low, high): ratios are clipped to [1 - low, 1 + high]; none for no clip.
        kl_coef: Weight of the KL penalty to the reference policy in the loss (k3 estimator); 0 for none.
        entropy_coef: Weight of the mean token entropy; 0 for none.
        epochs: Number of passes over the trajectories; in SeeUPO over each turn pool.
    """

    clip: Clip | None = (0.2, 0.2)
    kl_coef: NonNegative = 0.0
    entropy_coef: NonNegative = 0.0
    epochs: PositiveInt = 1

    @property
    def needs(self) -> frozenset[Need]:
        """Features that the engine must have: a reference policy for a KL penalty."""
        return frozenset({"reference"} if any(getattr(self, name, 0) for name in REFERENCE_OPTIONS) else ())

    def objective_inputs(self, engine: TrainEngine, batch: Batch, turns: Sequence[Turn]) -> ObjectiveInputs:
        """Return log pi_{theta_k} of the turns, that of the reference if needed, and the options of the objective."""
        reference = turns if "reference" in self.needs else ()
        old = behavior_logprobs(engine, turns, batch.behavior)
        return {
            "old": old,
            "importance": importance_weights(turns, old, batch.behavior),
            "reference": logprobs_by_key(engine, reference, "reference"),
            "multiplicities": batch.multiplicities,
            "clip": self.clip,
            "kl_coef": self.kl_coef,
            "entropy_coef": self.entropy_coef,
        }


@dataclass(frozen=True, kw_only=True)
class BaseAlgorithm(RatioAlgorithm, ABC):
    """Base class of the algorithms that update all turns together.

    Attributes:
        minibatches: Number of optimizer steps per epoch, each on a random part of the trajectories. A fraction is drawn
            at random in each iteration: 3.5 means 3 or 4.
    """

    minibatches: Minibatches = 1

    def update(
        self,
        engine: TrainEngine,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        """Run one iteration; `generator` draws the mini-batches."""
        return self.improve(engine, Batch(trajectories, behavior), generator)

    @abstractmethod
    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        """Estimate advantages, maximize an objective by steps of the engine, and return metrics and credit."""

    def turns_with_gradient(self, batch: Batch, weights: Tensor | Mapping[TurnKey, float]) -> list[Turn]:
        """Return the turns that have a gradient; those of weight 0 have one only with a KL or entropy term.

        `weights` are those of trajectories [N], or of turns by key.
        """
        if self.kl_coef or self.entropy_coef:
            return batch.turns
        weight = batch.per_turn(batch.turns, weights) if isinstance(weights, Tensor) else weights
        return [turn for turn in batch.turns if weight[turn.key] != 0]

    def step_batches(
        self, batch: Batch, turns: Sequence[Turn], generator: torch.Generator | None
    ) -> Iterator[tuple[list[Turn], float]]:
        """Yield the turns of each optimizer step and their normalizer."""
        count = self._draw_minibatches(generator)
        for _ in range(self.epochs):
            yield from batch.minibatches(turns, count, generator)

    def _draw_minibatches(self, generator: torch.Generator | None) -> int:
        whole = int(self.minibatches)
        if whole == self.minibatches:
            return whole
        return whole + int(torch.rand((), generator=generator, dtype=torch.float64) < self.minibatches - whole)

    def optimize(
        self,
        engine: TrainEngine,
        batch: Batch,
        advantages: Tensor,
        turns: Sequence[Turn],
        *,
        objective: RatioObjective,
        generator: torch.Generator | None,
        extra_metrics: dict[str, float] | None = None,
    ) -> Update:
        """Maximize the objective on the turns, and return metrics and credit; `advantages` [N] are only recorded."""
        steps: list[StepMetrics] = []
        for part, normalizer in self.step_batches(batch, turns, generator):
            # Recorded log-probs may be older than the weights: then the other turns' ratios do not start at 1.
            step_objective = objective.for_step(engine, part, batch.behavior.recorded or len(steps) > 0)
            steps.append(engine.step(part, step_objective, normalizer=normalizer))

        new = logprobs_by_key(engine, turns)
        updated = {turn.key for turn in turns}
        records = []
        for t, pool in enumerate(batch.pools):
            if used := [turn for turn in pool if turn.key in updated]:
                records.append(turn_record(batch, t, pool, used, objective, taken=TakenSteps(steps=(), new=new)))
        overall = iteration_metrics(batch, advantages, len(steps)) | mean_of_steps(steps) | (extra_metrics or {})
        overall |= importance_metrics(objective.importance)
        metrics = [
            StepMetrics(record.index, turn_metrics(batch, record, objective.old, objective.reference))
            for record in records
        ]
        return Update(
            metrics=(*metrics, StepMetrics(None, overall)), trajectories=with_credit(batch, advantages, records)
        )
