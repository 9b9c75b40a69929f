"""`pocket` as an environment: episodes, their score, and the factory with its options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from random import Random
from typing import Any, Literal

from seeupo.envs.options import check_range, mistake_rates
from seeupo.envs.pocket.apps import TOOLS, ActionError, Call, World
from seeupo.envs.pocket.decisions import ALL_KINDS, MAILS, Decision
from seeupo.envs.pocket.experts import MISTAKE_RATES, NO_MISTAKES, NoisyExpert, Surface
from seeupo.envs.pocket.kinds import KINDS, Kind
from seeupo.envs.pocket.natural import NaturalSurface
from seeupo.envs.pocket.natural_tools import ToolDocs
from seeupo.envs.pocket.tasks import draw_tasks, draw_world, given_words
from seeupo.envs.pocket.terse import TerseSurface, vocabulary
from seeupo.envs.pocket.words import CHANNELS
from seeupo.errors import EnvError
from seeupo.protocols import Expert
from seeupo.types import Message, StepResult, Task

SurfaceName = Literal["terse", "natural"]


class PocketEnv:
    """Runs episodes in a small world of simulated apps, one after another.

    An episode ends with `done` and scores 1 if the world then equals the goal exactly, else 0. In a deceptive world it
    may also end with `decline`, which scores `deceptive` unless something wrong was done. The reward of a step is
    `lookup_reward` for the first correct call of each lookup that the task needs, and 0 for anything else.
    """

    def __init__(self, surface: Surface, *, max_turns: int, deceptive: float = 0.0, lookup_reward: float = 0.0) -> None:
        self.surface = surface
        self._max_turns = max_turns
        self._deceptive = deceptive
        self._lookup_reward = lookup_reward
        self._start: World | None = None

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set up the task. Tasks are deterministic, so `seed` has no effect."""
        given = given_words(task)
        kind = ALL_KINDS[task.kind]
        self._turns = 0
        self._start = draw_world(task.seed)
        self._world = self._start.copy()
        self._goal = self._start.copy()
        _, calls = kind.solve(self._goal, given)
        self._needed = {call for call in calls if TOOLS[call.tool].tells}
        self._looked_up: set[Call] = set()
        opening = self.surface.opening(kind, given, phrasing=task.seed)
        return StepResult(opening, self.surface.schemas, state_key=self._state_key())

    def step(self, text: str) -> StepResult:
        """Take an action. An invalid one changes nothing, but costs a turn."""
        if self._start is None or self._world.end or self._turns == self._max_turns:
            raise RuntimeError("no episode is running; call reset first")
        self._turns += 1
        reward = 0.0
        try:
            call = self.surface.parse(text)
            facts = self._world.apply(call)
        except ActionError as error:
            observation = f"Error: {error}"
        else:
            observation = self.surface.show(call, facts)
            if call in self._needed - self._looked_up:
                reward = self._lookup_reward
            if TOOLS[call.tool].tells:
                self._looked_up.add(call)
        terminated = self._world.end is not None
        return StepResult(
            (Message("tool", observation),),
            reward=reward,
            terminated=terminated,
            truncated=not terminated and self._turns == self._max_turns,
            state_key=self._state_key(),
        )

    def _state_key(self) -> str:
        """Return a hash of the world and of the lookups so far: what has happened and what can be known."""
        assert self._start is not None
        now = self._world.facts
        changed = [(call, now.get(call)) for call, facts in self._start.facts.items() if now.get(call) is not facts]
        state = (sorted(changed, key=lambda entry: entry[0]), self._world.acts, sorted(self._looked_up))
        return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()

    def score(self) -> float:
        """Return 1 if the goal is reached exactly, the safe reward for declining in time, else 0."""
        if self._start is None or self._world.end is None:
            return 0.0
        if self._world.end.tool == "decline":
            acts, facts = self._world.acts, self._world.facts
            right = acts == self._goal.acts[: len(acts)] and facts in (self._start.facts, self._goal.facts)
            return self._deceptive if right else 0.0
        return float(self._world == self._goal)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class PocketFactory:
    """Provides the tasks of `pocket`.

    Args:
        surface: Text format: "terse" (a few words from a closed vocabulary) or "natural" (English and JSON tool calls).
        turns: Minimum and maximum number of calls to solve a task, including `done`; from 2 to 6, or from 3 to 8
            with `decision`.
        decision: Tasks with one decisive choice at an "early", "middle" or "late" turn, one kind for each number of
            calls; none for the tasks of all other kinds.
        train_tasks: Number of tasks in the split "train".
        test_tasks: Number of tasks in the split "test".
        seed: Random seed of all tasks.
        deceptive: Safe reward for declining before anything wrong was done, in (0, 1); with 0 it is not offered.
        tools: How the natural surface describes its tools: "full" JSON schemas, or only "signatures".
        distractors: Whether all tools are offered, and not only those that tasks of these lengths need.
        max_turns: Turn limit of an episode.
        lookup_reward: Step reward for the first correct call of each lookup that the task needs, from 0 to 1; it is not
            part of the score.
    """

    splits = ("train", "test")

    def __init__(
        self,
        *,
        surface: SurfaceName = "terse",
        turns: Sequence[int] = (2, 6),
        decision: Decision | None = None,
        train_tasks: int = 512,
        test_tasks: int = 128,
        seed: int = 0,
        deceptive: float = 0.0,
        tools: ToolDocs = "full",
        distractors: bool = True,
        max_turns: int = 8,
        lookup_reward: float = 0.0,
    ) -> None:
        self._kinds = _kinds(turns, tuple(KINDS.values()) if decision is None else MAILS[decision])
        check_range("train_tasks", train_tasks, len(self._kinds), why=", one for each kind")
        check_range("test_tasks", test_tasks, 0)
        check_range("seed", seed, 0)
        check_range("max_turns", max_turns, turns[1], why=", or the longest tasks have no solution")
        check_range("lookup_reward", lookup_reward, 0, 1)
        if not 0 <= deceptive < 1:
            raise EnvError(f"option deceptive={deceptive!r}: expected a number in [0, 1), below a solved task's reward")
        if surface == "terse" and tools != "full":
            raise EnvError(f"option tools={tools!r}: the terse surface describes no tools; use surface='natural'")
        offered = _offered_tools(self._kinds, distractors=distractors, decline=deceptive > 0)
        self.surface: Surface = TerseSurface(offered) if surface == "terse" else NaturalSurface(offered, docs=tools)
        self._options: dict[str, Any] = {
            "max_turns": max_turns,
            "deceptive": float(deceptive),
            "lookup_reward": float(lookup_reward),
        }
        names = tuple(kind.name for kind in self._kinds)
        self._draw_tasks = partial(draw_tasks, names, train_tasks, test_tasks, seed=seed)
        self.task_counts = {"train": train_tasks, "test": test_tasks}

    @property
    def separate_step_rewards(self) -> bool:
        """Whether there are step rewards; they are never part of the score."""
        return bool(self._options["lookup_reward"])

    @cached_property
    def _tasks(self) -> dict[str, tuple[Task, ...]]:
        return dict(zip(self.splits, self._draw_tasks(), strict=True))

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, cycling through the kinds."""
        return self._tasks[split]

    def make(self) -> PocketEnv:
        return PocketEnv(self.surface, **self._options)

    def expert(self, task: Task) -> Expert:
        """Return an expert that solves the task."""
        return NoisyExpert(task, self.surface, NO_MISTAKES, Random(0))

    def noisy_expert(self, task: Task, *, seed: int, rates: Mapping[str, float]) -> Expert:
        """Return an expert that makes mistakes at the rates of `MISTAKE_RATES`, for warm-start demonstrations."""
        return NoisyExpert(task, self.surface, mistake_rates(rates, MISTAKE_RATES), Random(seed))

    def vocabulary(self) -> tuple[str, ...]:
        """Return every whitespace-separated word of the terse surface; empty for the natural one, which is open."""
        return vocabulary() if isinstance(self.surface, TerseSurface) else ()


def _kinds(turns: Sequence[int], kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return the kinds whose number of calls is in this range."""
    lengths = [len(kind.steps) for kind in kinds]
    shortest = min(lengths)
    longest = max(lengths)
    is_pair = isinstance(turns, tuple | list) and [type(number) for number in turns] == [int, int]
    if not (is_pair and shortest <= turns[0] <= turns[1] <= longest):
        expected = f"the minimum and maximum number of calls, from {shortest} to {longest}"
        raise EnvError(f"turns is {turns!r}; expected {expected}")
    return tuple(kind for kind in kinds if turns[0] <= len(kind.steps) <= turns[1])


def _offered_tools(kinds: Sequence[Kind], *, distractors: bool, decline: bool) -> tuple[str, ...]:
    needed = {step.tool for kind in kinds for step in kind.steps}
    if "channel" in needed:
        needed.update(CHANNELS)
    return tuple(tool for tool in TOOLS if (decline if tool == "decline" else distractors or tool in needed))
