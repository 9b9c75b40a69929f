"""Data types shared by every layer.

One *turn* is one generation of the model, one *trajectory* is at most T turns with one score at its end, and G
trajectories of the same task form a *group*. Turns are counted from 0.

Only the standard library is imported here, because environments run in interpreters without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

TurnKey = tuple[str, int]
"""Identity of a turn: (trajectory id, index). Never its row in a batch."""
AgentId = int | str
"""Identity of a virtual agent: its index, from 0, after the role of its turns if they have one ("planner:0")."""


class StopReason(StrEnum):
    """The reason that a trajectory ended."""

    GOAL = "goal"
    ENVIRONMENT = "environment"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    FORCED = "forced"
    FAILURE = "failure"


class FailureKind(StrEnum):
    """The kind of infrastructure failure that ended an episode."""

    WORKER_LOST = "worker_lost"
    TIMED_OUT = "timed_out"
    RAISED = "raised"
    NOT_REPRODUCIBLE = "not_reproducible"
    POOL_CLOSED = "pool_closed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failure:
    """An infrastructure failure: not caused by the model's action, so the episode has no score."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one trajectory, in exactly the tokens that were sampled.

    Attributes:
        trajectory: Id of the trajectory.
        index: Position in the trajectory, from 0.
        prompt_ids: Tokens that the action is conditioned on.
        action_ids: Sampled tokens.
        behavior_logprobs: Log-probs of the action under the sampler, at the sampling temperature.
        policy_version: Version of the weights that sampled the action; None if it was not sampled.
        reward: Step reward of the environment after the action. Whether it is trained on depends on
            `Trajectory.outcome`.
        state_key: Name of the state that the action was chosen in: turns of one task with equal keys start from the
            same state. Empty if it is unknown.
        agent_role: Role of the agent program that made the call; empty for the only one.
    """

    trajectory: str
    index: int
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...] | None = None
    policy_version: int | None = None
    reward: float = 0.0
    state_key: str = ""
    agent_role: str = ""

    @property
    def key(self) -> TurnKey:
        """Identity of the turn: trajectory id and index."""
        return self.trajectory, self.index


@dataclass(frozen=True, slots=True)
class TurnText:
    """A turn as text: the decoded response, and the observation that followed ("" if there was none)."""

    response: str
    observation: str = ""


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The effect of one turn's update on one trajectory.

    Attributes:
        turn: Index of the turn.
        ratio: Probability of the action after the update divided by before it, as the algorithm defines the ratio.
        carried_before: Weight of the action in the update: the carried advantage M in SeeUPO, an advantage elsewhere.
        carried_after: M after the turn; None for algorithms that carry nothing from turn to turn.
        clipped: Whether the clip is active, for at least one of its tokens.
        new_logprobs: Log-probs of the action after the update.
    """

    turn: int
    ratio: float
    carried_before: float
    carried_after: float | None
    clipped: bool
    new_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantage A of a trajectory and the effect of each turn's update, in update order."""

    advantage: float
    turns: tuple[TurnCredit, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at one task: at most T turns, and a score.

    Attributes:
        group: Trajectories of the same group are compared with one another.
        task: Id of the attempted task; usually each task has one group per iteration.
        turns: The sampled turns, in the order in which their requests started.
        reward: Value that is trained on: the score, after reward shaping if that is enabled, and with the discounted
            step rewards if they are trained on.
        score: Official score of the environment; None if the trajectory failed or its problem has no environment.
        multiplicity: Number of trajectories that this one stands for: 1 if it was sampled, its probability if a small
            problem was enumerated. Every mean over trajectories is weighted by it.
        stop: Reason that it ended.
        failure: The infrastructure failure that ended it; None for every trajectory that may be trained on.
        truncated_responses: Number of responses that were cut at their length limit.
        timings: Seconds by activity.
        opening: The environment's first messages, as text.
        turn_texts: The turns as text, for readers.
        credit: Effect of an update; None before it.
        outcome: The part of the reward that is earned at the end, before discounting, if the step rewards of the turns
            are trained on beside it; None if the whole reward is earned at the end.
    """

    id: str
    group: str
    task: str
    turns: tuple[Turn, ...]
    reward: float
    score: float | None = None
    multiplicity: float = 1.0
    stop: StopReason = StopReason.ENVIRONMENT
    failure: Failure | None = None
    truncated_responses: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    opening: str = ""
    turn_texts: tuple[TurnText, ...] = ()
    credit: Credit | None = None
    outcome: float | None = None


def turns_of(trajectories: Iterable[Trajectory]) -> list[Turn]:
    """Return all turns of the trajectories, trajectory by trajectory."""
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def number_of_tokens(turns: Iterable[Turn]) -> int:
    """Return the number of tokens of all prompts and responses."""
    return sum(len(turn.prompt_ids) + len(turn.action_ids) for turn in turns)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Named scalars of one virtual agent (usually one turn), or of the whole iteration if `agent` is None.

    Attributes:
        agent: The virtual agent of an engine's step. In the metrics of an algorithm it is the position of its pool in
            the order of execution, from 0: the turn index, unless turns have several roles.
        agent_role: Role of its turns, if the algorithm tells roles apart.
    """

    agent: AgentId | None
    values: Mapping[str, float]
    agent_role: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """Result of one iteration of an algorithm: its metrics, and the trajectories with their credit."""

    metrics: tuple[StepMetrics, ...]
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """The policy that sampled an update's trajectories, and the corrections for its difference from the trained one.

    The default is the policy that the engine holds before the first step, without corrections.

    Attributes:
        recorded: Take the log-probs that the sampler recorded, not the engine's, as the denominator of all ratios.
            Needed if the weights have changed since; differences are then in the ratios and not corrected otherwise.
        tis_cap: C of truncated importance sampling: gradients are multiplied by w = min(pi_trainer / pi_sampler, C);
            None for w = 1.
        tis_level: Unit that has one weight: "token", or "turn" for the product over a turn.
        turn_bounds: Bounds (low, high) of a turn's geometric mean of pi_trainer / pi_sampler; turns outside have no
            gradient. None uses all turns.
    """

    recorded: bool = False
    tis_cap: float | None = None
    tis_level: Literal["token", "turn"] = "token"
    turn_bounds: tuple[float, float] | None = None


ON_POLICY = Behavior()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """Sampling parameters of an action.

    Attributes:
        max_tokens: Maximum length of the action.
        temperature: Sampling temperature; 0 means greedy.
        top_p, top_k: Truncation of the distribution that is sampled from, but not of the one that log-probs are
            computed for, so samplers for training refuse them. 1 and 0 do not truncate.
        stop: Texts that end the action.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request to sample one action.

    Attributes:
        id: Returned with the completion.
        prompt_ids: Tokens that the action is conditioned on.
        seed: Random seed of this sequence: the same seed gives the same tokens in any batch.
        episode: Requests of one episode extend one another, so a sampler may keep what it has computed.
        agent: The virtual agent (turn) that acts, for samplers with weights per turn.
        agent_role: Role of the agent program that acts, for samplers with weights per role.
    """

    id: str
    prompt_ids: tuple[int, ...]
    seed: int
    parameters: SamplingParameters
    episode: str | None = None
    agent: int | None = None
    agent_role: str = ""


class CompletionEnd(StrEnum):
    """The reason that a completion ended."""

    END_OF_TURN = "end_of_turn"
    STOP_STRING = "stop_string"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A sampled action: token ids, their log-probs at the sampling temperature, and the version of the weights.

    Attributes:
        work: What the sampler computed for it, if it counts that: `tokens` sampled, prompt tokens `prefilled`, forward
            `passes`, and tokens `drafted` and `accepted` by speculation.
    """

    id: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: CompletionEnd
    version: int
    work: Mapping[str, int] = field(default_factory=dict)


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment.

    Attributes:
        id: Unique in its split.
        split: The set that it belongs to, e.g. "train" or "test".
        kind: Tasks of one kind are reported together.
        seed: Random seed of the environment when the task is attempted.
        payload: What the environment needs to set the task up, as JSON; never the answer.
    """

    id: str
    split: str
    kind: str = ""
    seed: int = 0
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode to run.

    Attributes:
        id: Becomes the id of the trajectory.
        group: Attempts of one group are at the same task.
        seed: Random seed of the environment and of sampling.
        index: Position in the group, from 0.
    """

    id: str
    group: str
    task: Task
    seed: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by name, with JSON arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation: its role, its text, and the tool calls of an assistant's message."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an environment offers; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the format of Hugging Face chat templates and OpenAI."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a reset or an action.

    Attributes:
        messages: Messages since the last action.
        tools: Tools offered from now on; None if they are the same as before.
        reward: Reward of this step; a trajectory's score comes from `Env.score`. It is trained on only if the factory
            declares `separate_step_rewards` and the recipe asks for it.
        terminated: Whether the episode has ended by itself.
        truncated: Whether a limit of the environment ended it.
        info: Other JSON values for readers.
        state_key: Name of the environment's state, for algorithms that compare actions in equal states; None for a
            hash of the messages.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    state_key: str | None = None

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated
