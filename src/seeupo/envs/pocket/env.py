"""`pocket` as an environment: episodes, their score, and the factory with its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from random import Random
from typing import Literal, get_args

from seeupo.envs.pocket.experts import MistakeRates, noisy_expert, scripted_expert
from seeupo.envs.pocket.kinds import KINDS, Kind, kinds_within
from seeupo.envs.pocket.natural import NaturalSurface
from seeupo.envs.pocket.natural_tools import ToolDocs
from seeupo.envs.pocket.surface import Surface
from seeupo.envs.pocket.tasks import draw_test_tasks, draw_training_tasks, draw_world, given_words
from seeupo.envs.pocket.terse import TerseSurface, vocabulary
from seeupo.envs.pocket.words import CHANNELS
from seeupo.envs.pocket.world import TOOLS, ActionError, World
from seeupo.errors import EnvError, suggest
from seeupo.types import Expert, Message, StepResult, Task

SurfaceName = Literal["terse", "natural"]


class PocketEnv:
    """Runs episodes in a small world of simulated apps, one after another.

    An episode ends with `done` and scores 1 if the world then equals the goal exactly, else 0. In a deceptive world it
    may also end with `decline`, which scores `deceptive` if nothing has been changed.
    """

    def __init__(self, surface: Surface, *, max_turns: int, deceptive: float = 0.0) -> None:
        self.surface = surface
        self._max_turns = max_turns
        self._deceptive = deceptive
        self._start: World | None = None

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set up the task. Tasks are deterministic, so `seed` has no effect."""
        given = given_words(task)
        kind = KINDS[task.kind]
        self._turns = 0
        self._start = draw_world(task.seed)
        self._world = self._start.copy()
        self._goal = self._start.copy()
        kind.solve(self._goal, given)
        return StepResult(self.surface.opening(kind, given, phrasing=task.seed), self.surface.schemas)

    def step(self, text: str) -> StepResult:
        """Take an action. An invalid one changes nothing, but costs a turn."""
        if self._start is None or self._world.end or self._turns == self._max_turns:
            raise RuntimeError("no episode is running; call reset first")
        self._turns += 1
        try:
            call = self.surface.parse(text)
            facts = self._world.apply(call)
        except ActionError as error:
            observation = f"Error: {error}"
        else:
            observation = self.surface.show(call, facts)
        terminated = self._world.end is not None
        return StepResult(
            (Message("tool", observation),),
            reward=self.score(),
            terminated=terminated,
            truncated=not terminated and self._turns == self._max_turns,
        )

    def score(self) -> float:
        """Return 1 if the goal is reached exactly, the safe reward for declining in time, else 0."""
        if self._start is None or self._world.end is None:
            return 0.0
        if self._world.end.tool == "decline":
            untouched = self._world.facts == self._start.facts and not self._world.acts
            return self._deceptive if untouched else 0.0
        return float(self._world == self._goal)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class PocketFactory:
    """Provides the tasks of `pocket`.

    Args:
        surface: Text format: "terse" (a few words from a closed vocabulary) or "natural" (English and JSON tool calls).
        turns: Minimum and maximum number of calls to solve a task, including `done`; from 2 to 6.
        train_tasks: Number of tasks in the split "train".
        test_tasks: Number of tasks in the split "test".
        seed: Random seed of all tasks.
        deceptive: Safe reward for declining at once, in (0, 1); with 0 declining is not offered.
        tools: How the natural surface describes its tools: "full" or "short" JSON schemas, or only "signatures".
        distractors: Whether all tools are offered, and not only those that tasks of these lengths need.
        max_turns: Turn limit of an episode.
    """

    splits = ("train", "test")

    def __init__(
        self,
        *,
        surface: SurfaceName = "terse",
        turns: Sequence[int] = (2, 6),
        train_tasks: int = 512,
        test_tasks: int = 128,
        seed: int = 0,
        deceptive: float = 0.0,
        tools: ToolDocs = "full",
        distractors: bool = True,
        max_turns: int = 8,
    ) -> None:
        _check_choice("surface", surface, get_args(SurfaceName))
        _check_choice("tools", tools, get_args(ToolDocs))
        _check_choice("distractors", distractors, (True, False))
        self._kinds = _kinds(turns)
        _check_count("train_tasks", train_tasks, len(self._kinds), ", one for each kind")
        _check_count("test_tasks", test_tasks, 0)
        _check_count("seed", seed, 0)
        _check_count("max_turns", max_turns, turns[1], ", or the longest tasks have no solution")
        if isinstance(deceptive, bool) or not isinstance(deceptive, int | float) or not 0 <= deceptive < 1:
            raise EnvError(f"deceptive is {deceptive!r}; it must be in [0, 1), below the reward of a solved task")
        if surface == "terse" and tools != "full":
            raise EnvError(f"tools is {tools!r}; the terse surface describes no tools: use surface='natural'")
        offered = _offered_tools(self._kinds, distractors=distractors, decline=deceptive > 0)
        self.surface: Surface = TerseSurface(offered) if surface == "terse" else NaturalSurface(offered, docs=tools)
        self._max_turns = max_turns
        self._deceptive = float(deceptive)
        training = draw_training_tasks(self._kinds, train_tasks, seed=seed)
        test = draw_test_tasks(self._kinds, test_tasks, seed=seed, training=training)
        self._tasks = {"train": training, "test": test}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, cycling through the kinds."""
        _check_choice("split", split, self.splits)
        return self._tasks[split]

    def make(self) -> PocketEnv:
        """Create an environment."""
        return PocketEnv(self.surface, max_turns=self._max_turns, deceptive=self._deceptive)

    def expert(self, task: Task) -> Expert:
        """Return an expert that solves the task."""
        return scripted_expert(task, self.surface)

    def noisy_expert(self, task: Task, *, seed: int, rates: Mapping[str, float]) -> Expert:
        """Return an expert that makes mistakes at the rates of `MistakeRates`, for warm-start demonstrations."""
        names = [each.name for each in fields(MistakeRates)]
        for name in rates:
            if name not in names:
                raise EnvError(f"there is no mistake {name!r}; {suggest(name, names)}")
        return noisy_expert(task, self.surface, MistakeRates(**rates), Random(seed))

    def vocabulary(self) -> tuple[str, ...]:
        """Return every whitespace-separated word of the terse surface; empty for the natural one, which is open."""
        return vocabulary() if isinstance(self.surface, TerseSurface) else ()


def _kinds(turns: Sequence[int]) -> tuple[Kind, ...]:
    shortest, longest = (f(len(kind.steps) for kind in KINDS.values()) for f in (min, max))
    if (
        not isinstance(turns, tuple | list)
        or len(turns) != 2
        or not all(type(number) is int for number in turns)
        or not shortest <= turns[0] <= turns[1] <= longest
    ):
        raise EnvError(
            f"turns is {turns!r}; expected the minimum and maximum number of calls, from {shortest} to {longest}"
        )
    return kinds_within((turns[0], turns[1]))


def _offered_tools(kinds: Sequence[Kind], *, distractors: bool, decline: bool) -> tuple[str, ...]:
    needed = {step.tool for kind in kinds for step in kind.steps}
    if "channel" in needed:
        needed.update(CHANNELS)
    return tuple(tool for tool in TOOLS if (decline if tool == "decline" else distractors or tool in needed))


def _check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    if value not in accepted:
        raise EnvError(f"{name} is {value!r}; accepted: {', '.join(map(repr, accepted))}")


def _check_count(name: str, value: object, lowest: int, why: str = "") -> None:
    if type(value) is not int or value < lowest:
        raise EnvError(f"{name} is {value!r}; expected an integer of at least {lowest}{why}")
