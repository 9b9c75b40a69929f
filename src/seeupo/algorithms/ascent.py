"""What the backbone algorithms have in common: all turns of theta_k's trajectories are improved together.

Each algorithm says in its own file how it weighs actions and which ratio it clips; the optimizer steps, the estimates
of KL and entropy and the records mean the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor

from seeupo.algorithms.batch import Batch, LogProbs, by_key
from seeupo.algorithms.objective import RatioObjective
from seeupo.algorithms.records import iteration_metrics, mean_of_steps, turn_metrics, turn_records, with_credit
from seeupo.core.checks import Clip, check_at_least, check_choice, check_clip, check_count
from seeupo.types import Need, StepMetrics, TrainEngine, Turn, Update

Split = Literal["trajectory", "turn"]


class Fixed(TypedDict):
    """What stays as it is while the policy moves, as objectives take it."""

    old: LogProbs
    reference: LogProbs
    multiplicities: dict[str, float]
    clip: Clip | None
    kl_coef: float
    entropy_coef: float


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """Options that the backbone algorithms share.

    Attributes:
        clip: (low, high) around 1; none for no clip.
        kl_coef: weight of the k3 estimate of the KL to the engine's reference policy, as a term of the loss. 0 switches
            it off and costs nothing.
        entropy_coef: weight of the mean token entropy. 0 switches it off and costs nothing.
        epochs: passes over the trajectories.
        minibatches: optimizer steps per epoch (and turn), on random parts of the trajectories.
        split: "trajectory": a step sees all turns of its trajectories; "turn": turn by turn from the last to the first,
            as SeeUPO takes them, each with steps of its own.
    """

    clip: Clip | None = (0.2, 0.2)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    epochs: int = 1
    minibatches: int = 1
    split: Split = "trajectory"

    def __post_init__(self) -> None:
        check_clip("clip", self.clip)
        for name in ("kl_coef", "entropy_coef"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("epochs", "minibatches"):
            check_count(name, getattr(self, name), 1)
        check_choice("split", self.split, get_args(Split))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"} if self.kl_coef else ())

    def fix(self, engine: TrainEngine, batch: Batch, turns: Sequence[Turn], *, reference: bool = False) -> Fixed:
        """log pi_{theta_k} of the turns, and what else is fixed before the policy moves."""
        refer = turns if self.kl_coef or reference else ()
        return {
            "old": by_key(turns, engine.logprobs(turns)) if turns else {},
            "reference": by_key(refer, engine.logprobs(refer, policy="reference")) if refer else {},
            "multiplicities": batch.multiplicities,
            "clip": self.clip,
            "kl_coef": self.kl_coef,
            "entropy_coef": self.entropy_coef,
        }

    def with_gradient(self, batch: Batch, weights: Tensor) -> list[Turn]:
        """The turns of trajectories with weights [N] that have a gradient: only KL and entropy want those of 0."""
        if self.kl_coef or self.entropy_coef:
            return batch.turns
        weighed = batch.per_turn(batch.turns, weights)
        return [turn for turn in batch.turns if weighed[turn.key] != 0]

    def parts(
        self, batch: Batch, turns: Sequence[Turn], generator: torch.Generator | None
    ) -> Iterator[tuple[int | None, list[Turn], float]]:
        """Per optimizer step: the turn if it is of one turn only, the turns, and their normaliser."""
        pools: list[tuple[int | None, Sequence[Turn]]] = [(None, turns)]
        if self.split == "turn":
            used = {turn.key for turn in turns}
            numbered = reversed(list(enumerate(batch.pools)))
            pools = [(t, [turn for turn in pool if turn.key in used]) for t, pool in numbered]
        for _ in range(self.epochs):
            for t, pool in pools:
                for part, normalizer in batch.minibatches(pool, self.minibatches, generator):
                    yield t, part, normalizer

    def ascend(
        self,
        engine: TrainEngine,
        batch: Batch,
        advantages: Tensor,
        turns: Sequence[Turn],
        *,
        objective: RatioObjective,
        generator: torch.Generator | None,
        extra: dict[str, float] | None = None,
    ) -> Update:
        """Step up the objective, and say what became of the trajectories; `advantages` [N] and `extra` are told on."""

        def current(turns: Sequence[Turn]) -> LogProbs:
            return by_key(turns, engine.logprobs(turns))

        steps: list[StepMetrics] = []
        for t, part, normalizer in self.parts(batch, turns, generator):
            here = objective.at(current, part) if steps else objective
            steps.append(engine.step(part, here, normalizer=normalizer, agent=t))

        records = turn_records(batch, turns, objective, current(turns) if turns else {}, steps)
        overall = iteration_metrics(batch, advantages, len(steps)) | mean_of_steps(steps) | (extra or {})
        metrics = [
            StepMetrics(record.index, turn_metrics(batch, record, objective.old, objective.reference))
            for record in records
        ]
        return Update(
            metrics=(*metrics, StepMetrics(None, overall)), trajectories=with_credit(batch, advantages, records)
        )
