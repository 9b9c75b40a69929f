"""Protocols between the layers: algorithm, engine, sampler, rollouts and environment.

Only the standard library is imported here, because environments run in interpreters without torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from seeupo.types import (
    ON_POLICY,
    AgentId,
    Attempt,
    Behavior,
    Completion,
    GenerationRequest,
    StepMetrics,
    StepResult,
    Task,
    Trajectory,
    Turn,
    Update,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from seeupo.config.optimizer_settings import OptimizerSettings


Capability = Literal["critic", "send", "shrink", "trunk"]
"""What an engine may be able to do besides log-probs and steps.

"critic" has the methods of `CriticEngine`, "send" is `send_weights` of the cluster engine, "shrink" is
`shrinkable_steps`, "trunk" is `TrainableEngine.keep_trunk`.
"""


class Objective(Protocol):
    """The function that a step maximizes: picklable and pure, with one value per turn."""

    @property
    def needs_entropy(self) -> bool:
        """True if the objective uses entropies; engines skip computing them otherwise."""

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        """Return values [N] for log-probs and entropies [N, L] of the turns' actions, padded on the right.

        Padding positions may hold anything, NaN included.
        """


class CriticLoss(Protocol):
    """The loss that a critic step minimizes: picklable and pure, with one value per turn."""

    def __call__(self, values_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        """Return losses [N] for values [N, L] before each token of the turns' actions, padded with 0 on the right."""


class TrainEngine(Protocol):
    """The interface between algorithms and hardware: log-probs and optimizer steps.

    Attributes:
        iteration: The current iteration, from 0.
    """

    iteration: int

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this engine can do besides log-probs and steps."""

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        """Return log-probs [len(action)] of each turn's action tokens, without gradient, on the CPU."""

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        """Take one optimizer step up the gradient of sum(objective) / normalizer, in micro-batches of any size.

        `agent` is the virtual agent (turn) being updated, for engines with optimizer moments per turn.
        The metrics contain `grad_norm` if the update follows a gradient.
        """

    def shrinkable_steps(self) -> AbstractContextManager[Callable[[float], None]]:
        """Remember the trained weights until the context ends, so that the steps taken in it can be shrunk.

        With the capability "shrink", which a trust region needs.
        The function that it yields sets the weights to before + factor * (now - before); 0 restores them exactly.
        Optimizer moments stay as the steps left them: they average gradients, which remain valid for the next step.
        """


class CriticEngine(TrainEngine, Protocol):
    """A train engine with the capability "critic"."""

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        """Return values [A + 1] per trajectory of A action tokens: before each token, and after the last.

        Without gradient, on the CPU. The last one is the value of the state in which a trajectory was truncated.
        """

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        """Take one optimizer step down the gradient of sum(loss) / normalizer."""


class WeightSource(Protocol):
    """Provides weights to samplers that do not share memory with the trainer."""

    def owns(self, model: object) -> bool:
        """Return whether `model` is the trained model itself, so that nothing has to be copied to it."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the current weights by their Hugging Face names, adapters merged, without gradient.

        With one adapter per turn there is no merged model: the adapters are yielded by the names of their parameters.
        The model below them never changes.
        """


class TrainableEngine(TrainEngine, WeightSource, Protocol):
    """A train engine with the methods that the training loop calls.

    Attributes:
        tokens: Number of prompt and response tokens that passed through the policy so far, each time they did.
    """

    tokens: int

    def begin_iteration(self, iteration: int) -> None:
        """Set the iteration, from 0, that the next steps belong to; it determines the learning rate."""

    def learning_rate(self, iteration: int) -> float:
        """Return the policy's learning rate in an iteration, from 0."""

    def set_optimizer(self, settings: OptimizerSettings) -> None:
        """Continue with other settings and fresh optimizer state, as after a warm start."""

    def snapshot_reference(self) -> None:
        """Keep the current policy as the reference policy."""

    def reset_critic(self) -> None:
        """Restart the critic from the current policy; does nothing without a critic."""

    def copy_first_adapter(self) -> None:
        """Set all adapters to the first, as after a warm start; does nothing unless there is one per turn."""

    def keep_trunk(self, turns: Sequence[Turn]) -> None:
        """Compute the layers below the first trained one for turns that many iterations use, and keep the results.

        With the capability "trunk"; they are kept until the optimizer is set or a checkpoint is loaded.
        """

    def save(self, path: Path) -> None:
        """Write everything that training needs to resume exactly into an empty directory."""

    def load(self, path: Path) -> None:
        """Restore what `save` wrote."""

    def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder, adapters merged, into an existing directory.

        With one adapter per turn it is the base model and a folder for each adapter.
        """


class Sampler(Protocol):
    """Samples actions, many at a time; no request waits for the slowest."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; raise RuntimeError if shared weights have changed since the last sync."""

    def poll(self) -> list[Completion]:
        """Do some work and return the completions that have finished."""

    def cancel(self, ids: Iterable[str]) -> None:
        """Drop the requests with these ids, which then give no completion; ids of other requests are ignored."""

    def sync(self, engine: TrainableEngine, version: int) -> None:
        """Load the engine's current weights as `version`; only while no request is queued.

        Weights that share memory with the engine's are not copied.
        """

    def release(self) -> None:
        """Free device memory that is not needed until the next sync; only while no request is queued."""

    def draft_from(self, turns: Iterable[Turn]) -> None:
        """Guess tokens from earlier turns until the next sync or release; only the time of sampling depends on it.

        Does nothing if the sampler guesses no tokens.
        """


class Rollouts(Protocol):
    """Runs the attempts of an iteration. `seeupo.rollout.runner.Runner` runs them in environments.

    Attributes:
        work: What the sampler computed in the last run, summed over its completions.
    """

    work: Counter[str]

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Trajectory]:
        """Yield trajectories as they finish. An infrastructure failure gives a failed trajectory without a score."""


Need = Literal["reference", "critic"]


class Algorithm(Protocol):
    """One training iteration on collected trajectories; all that the loop knows about an algorithm."""

    @property
    def needs(self) -> frozenset[Need]:
        """Features that the engine must have besides log-probs and steps."""

    def update(
        self,
        engine: TrainEngine,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        """Improve the engine's policy on trajectories that it sampled, or that `behavior` says how it sampled."""


class Env(Protocol):
    """An environment that runs one episode after another. It never sees a token.

    The same task, seed and actions always give the same results: an episode whose worker died is repeated elsewhere.
    """

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set up the task and return the first messages and the tools; `seed` is for randomness within an attempt."""

    def step(self, text: str) -> StepResult:
        """Take an action, as the policy wrote it: hostile text, to be parsed and never evaluated."""

    def score(self) -> float:
        """Return the official final score, also if the episode was stopped from outside."""

    def close(self) -> None:
        """Release everything that the episode holds."""


Expert = Callable[[StepResult], str]
"""Chooses the next action from the last result."""


class EnvFactory(Protocol):
    """An environment with its tasks. `make` returns a separate `Env` for each concurrent episode.

    A factory may have the attribute `separate_step_rewards`: True declares that the rewards of its steps are not part
    of its scores, so that both may be added up.
    """

    @property
    def splits(self) -> Sequence[str]:
        """The names of the task splits."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, always the same in the same order."""

    def make(self) -> Env:
        """Create an environment."""

    def expert(self, task: Task) -> Expert | None:
        """Return a scripted expert that solves the task, or None if there is none."""
