"""A file of prompts as an environment of one turn. It runs in the trainer's process: the reward function is yours."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from reprlib import repr as short
from typing import Any

from seeupo.envs.dataset.rows import Row, read_rows
from seeupo.envs.references import resolve
from seeupo.errors import EnvError, suggest
from seeupo.types import Expert, StepResult, Task

Reward = Callable[[str, dict[str, Any]], float]
"""From a reply, and all fields of its row, to its score."""


class RewardError(Exception):
    """A reward function failed. That says nothing about the reply, which is therefore not scored at all."""


class DatasetEnv:
    """One prompt, one reply, one score."""

    def __init__(self, rows: Mapping[str, Mapping[str, Row]], reward: Reward) -> None:
        self._rows = rows
        self._reward = reward
        self._row: Row | None = None
        self._score = 0.0

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """The prompt. Nothing is drawn from the seed."""
        row = self._rows.get(task.split, {}).get(task.id)
        if row is None:
            raise EnvError(f"there is no task {task.id!r} in the split {task.split!r}")
        self._row = row
        self._score = 0.0
        return StepResult(row.messages)

    def step(self, text: str) -> StepResult:
        """Score the reply; that is the end."""
        if self._row is None:
            raise RuntimeError("there is no prompt waiting for a reply; call reset first")
        row, self._row = self._row, None
        self._score = score_reply(self._reward, text, row)
        return StepResult((), reward=self._score, terminated=True)

    def score(self) -> float:
        """What the reward function said; 0 if there was no reply."""
        return self._score

    def close(self) -> None:
        """Nothing is held."""


class DatasetFactory:
    """Prompts from a JSONL file, one reply each, scored by a function of yours."""

    def __init__(self, *, train: str, reward: str | Reward, test: str | None = None) -> None:
        """Read the files, and find the function.

        Args:
            train: the file of the split "train": a JSON object a line, with a "prompt" and whatever else.
            reward: "module:function" or "path/to/file.py:function", or the function: reward(completion, row) -> float.
            test: the file of the split "test", if there is one.
        """
        files = {"train": train} | ({} if test is None else {"test": test})
        self._rows = {split: read_rows(Path(file).expanduser()) for split, file in files.items()}
        found = resolve(reward) if isinstance(reward, str) else reward
        if not callable(found):
            raise EnvError(f"reward={reward!r}: it should name a function, and names {found!r}")
        self._reward: Reward = found

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._rows)

    def tasks(self, split: str) -> Sequence[Task]:
        """One task a line, in the order of the file."""
        if split not in self._rows:
            raise EnvError(f"there is no file for the split {split!r}; {suggest(split, self.splits)}")
        return [Task(row.id, split, kind=row.kind) for row in self._rows[split].values()]

    def make(self) -> DatasetEnv:
        return DatasetEnv(self._rows, self._reward)

    def expert(self, task: Task) -> Expert | None:
        """Replies with the field "answer", where a row has one."""
        row = self._rows.get(task.split, {}).get(task.id)
        if row is None or "answer" not in row.fields:
            return None
        answer = str(row.fields["answer"])
        return lambda _: answer


def score_reply(reward: Reward, reply: str, row: Row) -> float:
    """The function's verdict, if it is a number that can be trained on. The function gets a row of its own."""
    name = getattr(reward, "__qualname__", repr(reward))
    try:
        value: Any = reward(reply, copy.deepcopy(dict(row.fields)))
        score = float(value) if isinstance(value, Real) else math.nan
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise RewardError(f"the reward function {name} failed on {row.place}: {what}") from error
    if not math.isfinite(score):
        wrong = f"should return a finite number and gave {short(value)} for {row.place}"
        raise RewardError(f"the reward function {name} {wrong}")
    return score
