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
    """One episode after another in a pocket-size world of apps.

    An episode ends with `done` and is worth 1 if the world is then exactly as the goal, or else 0. In a deceptive world
    it may also end with `decline`, which is worth `deceptive` as long as nothing has been changed.
    """

    def __init__(self, surface: Surface, *, max_turns: int, deceptive: float = 0.0) -> None:
        self.surface = surface
        self._max_turns = max_turns
        self._deceptive = deceptive
        self._start: World | None = None

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set the task up. Once it has been drawn nothing is left to chance, so the episode's seed changes nothing."""
        given = given_words(task)
        kind = KINDS[task.kind]
        self._turns = 0
        self._start = draw_world(task.seed)
        self._world = self._start.copy()
        self._goal = self._start.copy()
        kind.solve(self._goal, given)
        return StepResult(self.surface.opening(kind, given, phrasing=task.seed), self.surface.schemas)

    def step(self, text: str) -> StepResult:
        """Take an action. One that cannot be taken changes nothing, but costs a turn."""
        if self._start is None or self._world.end or self._turns == self._max_turns:
            raise RuntimeError("there is no episode under way; call reset first")
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
        """1 for the goal and nothing else, the safe reward for declining in time, otherwise 0."""
        if self._start is None or self._world.end is None:
            return 0.0
        if self._world.end.tool == "decline":
            untouched = self._world.facts == self._start.facts and not self._world.acts
            return self._deceptive if untouched else 0.0
        return float(self._world == self._goal)

    def close(self) -> None:
        """Nothing is held."""


class PocketFactory:
    """The tasks of `pocket` and its worlds.

    Args:
        surface: "terse" (a few words from a closed vocabulary) or "natural" (English and JSON tool calls).
        turns: the fewest and the most calls that a task takes, `done` included; from 2 to 6.
        train_tasks, test_tasks: how many there are of each.
        seed: of all tasks.
        deceptive: the safe reward of declining at once, in (0, 1); 0 is a world where declining is not offered.
        tools: how the natural surface describes its tools: "full" or "short" JSON schemas, or only "signatures".
        distractors: offer all tools rather than only those that tasks of these lengths need.
        max_turns: an episode is cut off after so many.
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
            raise ValueError(f"deceptive is {deceptive!r}; it must be in [0, 1), below the reward of a solved task")
        if surface == "terse" and tools != "full":
            raise ValueError(f"tools is {tools!r}; the terse surface describes no tools: use surface='natural'")
        offered = _offered_tools(self._kinds, distractors=distractors, decline=deceptive > 0)
        self.surface: Surface = TerseSurface(offered) if surface == "terse" else NaturalSurface(offered, docs=tools)
        self._max_turns = max_turns
        self._deceptive = float(deceptive)
        training = draw_training_tasks(self._kinds, train_tasks, seed=seed)
        test = draw_test_tasks(self._kinds, test_tasks, seed=seed, training=training)
        self._tasks = {"train": training, "test": test}

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, kind after kind."""
        _check_choice("split", split, self.splits)
        return self._tasks[split]

    def make(self) -> PocketEnv:
        """A world of its own."""
        return PocketEnv(self.surface, max_turns=self._max_turns, deceptive=self._deceptive)

    def expert(self, task: Task) -> Expert:
        """A player that solves the task."""
        return scripted_expert(task, self.surface)

    def noisy_expert(self, task: Task, *, seed: int, rates: Mapping[str, float]) -> Expert:
        """A player that makes mistakes, at the rates of `MistakeRates`, for demonstrations to start a model from."""
        names = [each.name for each in fields(MistakeRates)]
        for name in rates:
            if name not in names:
                raise EnvError(f"there is no mistake {name!r}; {suggest(name, names)}")
        return noisy_expert(task, self.surface, MistakeRates(**rates), Random(seed))

    def vocabulary(self) -> tuple[str, ...]:
        """Every word that the terse surface shows or accepts, set apart by white space; the natural one has no end."""
        return vocabulary() if isinstance(self.surface, TerseSurface) else ()


def _kinds(turns: Sequence[int]) -> tuple[Kind, ...]:
    shortest, longest = (f(len(kind.steps) for kind in KINDS.values()) for f in (min, max))
    if (
        not isinstance(turns, tuple | list)
        or len(turns) != 2
        or not all(type(number) is int for number in turns)
        or not shortest <= turns[0] <= turns[1] <= longest
    ):
        raise ValueError(
            f"turns is {turns!r}; it must be the fewest and the most calls of a task, from {shortest} to {longest}"
        )
    return kinds_within((turns[0], turns[1]))


def _offered_tools(kinds: Sequence[Kind], *, distractors: bool, decline: bool) -> tuple[str, ...]:
    needed = {step.tool for kind in kinds for step in kind.steps}
    if "channel" in needed:
        needed.update(CHANNELS)
    return tuple(tool for tool in TOOLS if (decline if tool == "decline" else distractors or tool in needed))


def _check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; accepted: {', '.join(map(repr, accepted))}")


def _check_count(name: str, value: object, lowest: int, why: str = "") -> None:
    if type(value) is not int or value < lowest:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {lowest}{why}")
