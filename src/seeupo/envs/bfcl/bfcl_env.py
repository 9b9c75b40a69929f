"""BFCL v4 multi-turn as an environment. Runs in workers whose interpreter has `bfcl-eval`.

A task is a conversation of several user turns. Within a user turn the model calls functions, step by step. A reply
without calls ends the user turn, and the next user message follows. The official checker scores the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seeupo.envs.bfcl import official, tools
from seeupo.envs.bfcl.calls import PARSERS, ActionFormat, DecodeError, parse_python, write_action
from seeupo.envs.bfcl.execution import Backends
from seeupo.envs.bfcl.tools import Documentation, Function
from seeupo.envs.options import check_range
from seeupo.errors import EnvError
from seeupo.protocols import Expert
from seeupo.types import Message, StepResult, Task, Tool
from seeupo.utils.text import cut

LONGEST_RESULT = 40_000
"""Number of characters of a result that are shown; the longest one of a correct solution has 31,706."""
BASE_SPLITS = {
    "train": slice(0, 100),
    "test": slice(100, 200),
    "even": slice(0, None, 2),
    "odd": slice(1, None, 2),
}
"""Slices of the category base. train and test are those of the paper's public code: tasks of other apps."""


@dataclass(kw_only=True, eq=False)
class BfclEnv:
    """Runs one conversation at a time, on its own backends."""

    action_format: ActionFormat
    documentation: Documentation
    max_steps: int | None
    turn_reward: float
    end_at_mistake: bool
    _backends: Backends | None = field(default=None, init=False)
    _stop: str | None = field(default=None, init=False)
    _verdict: str = field(default="valid", init=False)

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Return the system prompt, if there is one, and the first user message. The seed is not used."""
        self._entry = official.load_entry(known(task.id))
        self._functions: list[Function] = list(self._entry["function"])
        self._backends = Backends(self._entry)
        self._calls: list[list[list[str]]] = [[]]  # by user turn and step
        self._steps = 0
        self._stop = None
        self._verdict = "valid"  # on the user turns that have ended
        self._right_user_turns = 0
        prompt = self._system_prompt()
        system = () if prompt is None else (Message("system", prompt),)
        return StepResult((*system, *self._user_messages()), tools=self._tools(), info=self._info())

    def step(self, text: str) -> StepResult:
        """Execute the calls in the text; without any, continue with the next user turn."""
        if self._backends is None or self._stop is not None:
            raise RuntimeError("no episode is running; call reset first")
        self._steps += 1
        why_none = None
        try:
            calls = PARSERS[self.action_format](text)
        except DecodeError as error:
            calls, why_none = [], str(error)
        offered, step_reward = None, 0.0
        if calls:
            results = [self._backends.execute(call) for call in calls]
            self._calls[-1].append([result.checked for result in results])
            messages = tuple(Message("tool", cut(result.text, LONGEST_RESULT)) for result in results)
            if len(self._calls[-1]) > official.STEPS_PER_USER_TURN:
                self._stop = "steps_per_user_turn"
        else:
            step_reward, messages = self._check_user_turn(), ()
            if len(self._calls) == len(self._entry["question"]):
                self._stop = "finished"
            elif self.end_at_mistake and self._verdict != "valid":
                self._stop = "mistake"
            else:
                self._calls.append([])
                messages = self._user_messages()
                offered = (self._tools() or None) if self._held_out() else None
        if self._stop is None and self._steps == self.max_steps:
            self._stop = "max_steps"
        return StepResult(
            messages,
            tools=offered,
            reward=step_reward,
            terminated=self._stop in ("finished", "mistake"),
            truncated=self._stop in ("steps_per_user_turn", "max_steps"),
            info=self._info() | ({"no_call": why_none} if why_none else {}),
        )

    def score(self) -> float:
        """Return 1 if the official checker accepts the calls of a finished conversation, else 0."""
        return float(self._stop == "finished" and self._verdict == "valid")

    def close(self) -> None:
        self._backends = None

    def _check_user_turn(self) -> float:
        """Check the user turn that ends, and return its step reward. The first error is the verdict, as officially."""
        if self._verdict == "valid":
            self._verdict = official.check(self._entry, self._calls)
        if self._verdict != "valid":
            return 0.0
        self._right_user_turns += 1
        return self.turn_reward

    def _held_out(self) -> list[Function]:
        """Return the functions that are offered from this user turn on."""
        held_out: Mapping[str, list[Function]] = self._entry.get("missed_function", {})
        return held_out.get(str(len(self._calls) - 1), [])

    def _user_messages(self) -> tuple[Message, ...]:
        """Return the user messages at the start of a user turn, or the one that offers held-out functions."""
        if held_out := self._held_out():
            self._functions += held_out
            return (Message("user", official.announcement(self._announced(held_out))),)
        turn = self._entry["question"][len(self._calls) - 1]
        return tuple(Message(message["role"], message["content"]) for message in turn)

    def _announced(self, functions: Sequence[Function]) -> str | None:
        if self.documentation == "signatures":
            return tools.signatures(functions)
        return str(functions) if self.action_format == "python" else None

    def _system_prompt(self) -> str | None:
        if self.documentation == "signatures":
            return tools.short_prompt(self._functions, self.action_format)
        # With tool calls, the chat template describes the tools and how to call them.
        return official.system_prompt(self._functions) if self.action_format == "python" else None

    def _tools(self) -> tuple[Tool, ...]:
        if self.action_format == "python" or self.documentation == "signatures":
            return ()
        return tools.as_tools(self._functions)

    def _info(self) -> dict[str, Any]:
        info = {"user_turn": len(self._calls), "user_turns": len(self._entry["question"])}
        if self._stop is None:
            return info
        verdict = self._verdict if self._stop in ("finished", "mistake") else "unfinished"
        return info | {"stop": self._stop, "verdict": verdict, "right_user_turns": self._right_user_turns}


class BfclFactory:
    """Provides the four multi-turn splits, and halves of base.

    Args:
        action_format: How the model writes calls. "python": the official `[f(a=1), g()]`. "tool_call": JSON in
            `<tool_call>` tags, with the functions offered as tools, which the chat template formats.
        documentation: Level of detail of the function descriptions, see `tools.py`.
        max_steps: Maximum number of steps of an episode; an unfinished conversation scores 0. The paper uses 10.
        expert_step: Calls that the expert makes in one step: all of a user turn, or one.
        apps: Apps that tasks may use, by the names of their classes; tasks that use others are left out.
        turn_reward: Step reward of a user turn if the official checker accepts it and all before it. It is not part
            of the score.
        end_at_mistake: Whether an episode ends with the first user turn that the official checker rejects. Its score
            is 0 in any case, so scores stay the same and the rest is neither sampled nor trained on.
    """

    def __init__(
        self,
        *,
        action_format: ActionFormat = "python",
        documentation: Documentation = "official",
        max_steps: int | None = None,
        expert_step: Literal["turn", "call"] = "turn",
        apps: Sequence[str] | None = None,
        turn_reward: float = 0.0,
        end_at_mistake: bool = False,
    ) -> None:
        check_range("turn_reward", turn_reward, 0, 1)
        check_range("max_steps", 1 if max_steps is None else max_steps, 1)
        self._expert_step = expert_step
        self._apps = None if apps is None else known_apps(apps)
        self._options: dict[str, Any] = {
            "action_format": action_format,
            "documentation": documentation,
            "max_steps": max_steps,
            "turn_reward": turn_reward,
            "end_at_mistake": end_at_mistake,
        }

    @property
    def separate_step_rewards(self) -> bool:
        """Whether there are step rewards; they are never part of the score."""
        return bool(self._options["turn_reward"])

    @property
    def splits(self) -> Sequence[str]:
        return *official.CATEGORIES, *BASE_SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        """Return tasks with their official ids; the kind is the category and the involved classes."""
        category = "base" if split in BASE_SPLITS else split
        ids = official.task_ids(category)[BASE_SPLITS.get(split, slice(None))]
        return [
            Task(id, split, kind=f"{category}/{'+'.join(apps)}")
            for id, apps in zip(ids, map(official.classes_of, ids), strict=True)
            if self._apps is None or self._apps.issuperset(apps)
        ]

    def make(self) -> BfclEnv:
        return BfclEnv(**self._options)

    def expert(self, task: Task) -> Expert:
        """Return an expert that replays the official answer."""
        actions = self._replay(known(task.id))
        return lambda _: next(actions)

    def _replay(self, task: str) -> Iterator[str]:
        backends = Backends(official.load_entry(task))
        action_format = self._options["action_format"]
        for turn in official.ground_truth(task):
            calls = [backends.named(call) for source in turn for call in parse_python(source)]
            at_once = len(calls) if self._expert_step == "turn" else 1
            for first in range(0, len(calls), at_once or 1):
                yield write_action(calls[first : first + at_once], action_format)
            yield write_action([], action_format)


def known_apps(apps: Sequence[str]) -> frozenset[str]:
    """Return the apps if tasks use them."""
    every = sorted({app for id in official.task_ids("base") for app in official.classes_of(id)})
    if isinstance(apps, str) or not apps or not all(app in every for app in apps):
        raise EnvError(f"option apps={apps!r}: expected a list of {', '.join(every)}")
    return frozenset(apps)


def known(task: str) -> str:
    """Return the id if the task exists."""
    category = official.category_of(task)
    if category not in official.CATEGORIES or task not in official.task_ids(category):
        raise EnvError(f"bfcl has no task {task!r}; an example of an id is multi_turn_base_0")
    return task
