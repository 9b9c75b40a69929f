"""The data types and protocols that every layer shares.

One *turn* is one generation of the model, one *trajectory* is at most T turns with one reward at its end, and
G trajectories of the same task are a *group*. Turns are counted from 0.

Nothing but the standard library is imported here: environments run in interpreters of their own, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SampleKey = tuple[str, int]
"""A sample's identity: (trajectory id, turn). Never its row in some batch."""


class StopReason(StrEnum):
    """Why a trajectory has no further turn."""

    GOAL = "goal"
    ENVIRONMENT = "environment"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    FORCED = "forced"
    FAILURE = "failure"


class Status(StrEnum):
    """Whether a trajectory may be trained on. An infrastructure failure is never scored."""

    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one trajectory, in exactly the tokens that were sampled."""

    trajectory: str
    turn: int
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...] | None = None

    @property
    def key(self) -> SampleKey:
        return self.trajectory, self.turn


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """What one turn's update did to one trajectory.

    Attributes:
        ratio: of the action's probability, after the update to before it, as the algorithm defines it.
        carried_before: what the action was weighted with: M in SeeUPO, an advantage elsewhere.
        carried_after: M that the turn left behind; None for algorithms that carry nothing from turn to turn.
        clipped: whether the clip has come to bind, on one of its tokens at least.
    """

    turn: int
    ratio: float
    carried_before: float
    carried_after: float | None
    clipped: bool
    new_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantage A of a trajectory and, in update order, how each turn changed what is carried from it."""

    advantage: float
    turns: tuple[TurnCredit, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """At most T turns of one attempt at one task, and its reward.

    Attributes:
        group: trajectories of the same group are compared with one another.
        task: what was attempted; usually each task has one group in an iteration.
        multiplicity: how many trajectories this one stands for: 1 when it was sampled, its probability when a small
            problem was enumerated. Every mean over trajectories is weighted by it.
        texts: what people read: the task, then turn by turn the response and what the environment answered.
        credit: what an update made of it.
    """

    id: str
    group: str
    task: str
    samples: tuple[Sample, ...]
    reward: float
    multiplicity: float = 1.0
    stop: StopReason = StopReason.ENVIRONMENT
    status: Status = Status.OK
    timings: Mapping[str, float] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    credit: Credit | None = None


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Named scalars of one virtual agent (one turn), or of the whole iteration when `agent` is None."""

    agent: int | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Update:
    """What an algorithm returns from one iteration: its metrics and the trajectories with their credit records."""

    metrics: tuple[StepMetrics, ...]
    trajectories: tuple[Trajectory, ...]


class Objective(Protocol):
    """What a step maximises: a picklable, pure function of log-probs, one value per sample."""

    @property
    def needs_entropy(self) -> bool:
        """Whether entropies are wanted; engines skip computing them otherwise."""

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, samples: Sequence[Sample]) -> Tensor:
        """Values [N] for log-probs and entropies [N, L] of the samples' actions, padded on the right.

        Padding positions may hold anything, NaN included.
        """


class CriticLoss(Protocol):
    """What a step of the critic goes down: a picklable, pure function of values, one number per sample."""

    def __call__(self, values_NL: Tensor, samples: Sequence[Sample]) -> Tensor:
        """Losses [N] for values [N, L] before each token of the samples' actions, padded with 0 on the right."""


class TrainEngine(Protocol):
    """The seam between algorithm and hardware: where weights live and how they move."""

    def logprobs(
        self, samples: Sequence[Sample], *, policy: Literal["current", "reference"] = "current"
    ) -> list[Tensor]:
        """Log-probs [len(action)] of each sample's action tokens, without gradient, on the CPU."""

    def step(
        self, samples: Sequence[Sample], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        """One optimizer step up the gradient of sum(objective) / normalizer; micro-batches are the engine's affair.

        `agent` is the virtual agent (turn) being updated, for engines that keep adapters or moments per turn.
        The metrics contain `grad_norm` where the update follows a gradient.
        """

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...


@runtime_checkable
class CriticEngine(TrainEngine, Protocol):
    """An engine that has a critic as well. `iteration` counts those of the run, from 0."""

    iteration: int

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        """Per trajectory of A action tokens, values [A + 1]: before each of them, and behind the last.

        Without gradient, on the CPU. The last one is the value of the state in which a trajectory was cut off.
        """

    def step_critic(self, samples: Sequence[Sample], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        """One optimizer step down the gradient of sum(loss) / normalizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How actions are sampled.

    `top_p` and `top_k` cut the distribution off. What is sampled then is not what log-probs are computed of, so
    samplers for training refuse them.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One action to be sampled.

    Attributes:
        id: comes back with the completion.
        prompt_ids: the condition.
        seed: of this sequence alone: the same seed gives the same tokens, whatever else is in the batch.
        episode: requests of one episode extend one another; a sampler may keep what it has computed.
        agent: the virtual agent (turn) that acts, for samplers with weights per turn.
    """

    id: str
    prompt_ids: tuple[int, ...]
    seed: int
    parameters: SamplingParameters
    episode: str | None = None
    agent: int | None = None


class CompletionEnd(StrEnum):
    """Why a completion has no further token."""

    END_OF_TURN = "end_of_turn"
    STOP_STRING = "stop_string"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was sampled for a request: ids, their log-probs at the sampling temperature, and with which weights."""

    id: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: CompletionEnd
    version: int


class Sampler(Protocol):
    """Samples actions, many at a time; nothing waits for the slowest."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request."""

    def poll(self) -> list[Completion]:
        """Do some work and return whatever has finished."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over new weights; only between requests."""


class Algorithm(Protocol):
    """One training iteration on collected trajectories. The trainer knows no more of an algorithm than this."""

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update: ...


def samples_of(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """All samples of the trajectories, trajectory by trajectory."""
    return [sample for trajectory in trajectories for sample in trajectory.samples]


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be attempted.

    Attributes:
        split: the set it belongs to, e.g. "train" or "test".
        kind: tasks of one kind are reported together.
        seed: of whatever the environment draws when the task is attempted.
        payload: what the environment needs to set the task up, as JSON; never the answer.
    """

    id: str
    split: str
    kind: str = ""
    seed: int = 0
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by name, with JSON arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an environment offers; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an environment answers to a reset or an action.

    Attributes:
        messages: that are new since the action.
        tools: offered from now on; None when they are the same as before.
        reward: of this step alone, to be shown; a trajectory's reward is the environment's score.
        terminated: the episode has ended by itself.
        truncated: a limit of the environment ended it.
        info: anything else that people may want to see, as JSON.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Env(Protocol):
    """A world that one episode after another happens in. It never sees a token.

    The same task, seed and actions always give the same results: an episode whose worker died is repeated elsewhere.
    """

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set the task up; the first messages and the tools offered."""

    def step(self, text: str) -> StepResult:
        """Take an action, as the policy wrote it: hostile text, to be parsed and never to be evaluated."""

    def score(self) -> float:
        """The official final score, also when the episode was stopped from outside."""

    def close(self) -> None:
        """Give back whatever the episode holds."""


Expert = Callable[[StepResult], str]
"""Chooses the next action from what the environment has just answered."""


class EnvFactory(Protocol):
    """An environment with its tasks. `make` gives a world of its own to each episode that runs at the same time."""

    @property
    def splits(self) -> Sequence[str]:
        """The sets of tasks that there are."""

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, always the same ones in the same order."""

    def make(self) -> Env: ...

    def expert(self, task: Task) -> Expert | None:
        """A scripted player that solves the task, or None where nobody knows how."""


class NoisyExpertFactory(EnvFactory, Protocol):
    """A factory that may also offer an expert who makes mistakes, for demonstrations to start a model from."""

    def noisy_expert(self, task: Task, *, seed: int, rates: Mapping[str, float]) -> Expert:
        """A player whose mistakes are drawn from the seed; `rates` names them, and without any it has its own."""
