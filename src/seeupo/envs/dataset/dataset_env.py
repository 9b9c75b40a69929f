"""A file of prompts as a single-turn environment."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from reprlib import repr as short
from typing import Any

from seeupo.envs.dataset.rows import Row, read_rows
from seeupo.envs.declare import Role
from seeupo.envs.references import resolve_option
from seeupo.errors import EnvError
from seeupo.protocols import Expert
from seeupo.types import StepResult, Task

Reward = Callable[[str, dict[str, Any]], float]
"""Maps a reply and all fields of its row to a score."""


class RewardError(Exception):
    """A reward function failed, so the reply is not scored."""


class DatasetEnv:
    """Runs episodes of one prompt, one reply and one score."""

    def __init__(self, row_of: Callable[[Task], Row], reward: Reward) -> None:
        self._row_of = row_of
        self._reward = reward
        self._row: Row | None = None
        self._score = 0.0

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Return the prompt. The seed is not used."""
        self._row = self._row_of(task)
        self._score = 0.0
        return StepResult(self._row.messages)

    def step(self, text: str) -> StepResult:
        """Score the reply and end the episode."""
        if self._row is None:
            raise RuntimeError("no episode is running; call reset first")
        row, self._row = self._row, None
        self._score = score_reply(self._reward, text, row)
        return StepResult((), reward=self._score, terminated=True)

    def score(self) -> float:
        """Return the reward function's value; 0 if there was no reply."""
        return self._score

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class DatasetFactory:
    """Provides prompts from JSONL files, scored by a custom function."""

    def __init__(self, *, train: str, reward: str | Reward, test: str | None = None) -> None:
        """Read the files and load the reward function.

        Args:
            train: File of the split "train": one JSON object per line, with a "prompt" and any other fields.
            reward: Reward function, or "module:function" or "path/to/file.py:function" that names one marked with
                `seeupo.reward_function`. It is called as reward(completion, row) and returns a number from 0
                to 1.
            test: File of the split "test".
        """
        files = {"train": train} | ({} if test is None else {"test": test})
        self._rows = {split: read_rows(Path(file).expanduser()) for split, file in files.items()}
        self._reward: Reward = resolve_option("reward", reward, Role.REWARD)

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._rows)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return one task per line, in the order of the file."""
        return [Task(row.id, split, kind=row.kind) for row in self._rows[split].values()]

    def make(self) -> DatasetEnv:
        return DatasetEnv(self._row_of, self._reward)

    def expert(self, task: Task) -> Expert | None:
        """Return an expert that replies with the field "answer"; None if the row has none."""
        fields = self._row_of(task).fields
        if "answer" not in fields:
            return None
        answer = str(fields["answer"])
        return lambda _: answer

    def _row_of(self, task: Task) -> Row:
        row = self._rows.get(task.split, {}).get(task.id)
        if row is None:
            raise EnvError(f"split {task.split!r} has no task {task.id!r}")
        return row


def score_reply(reward: Reward, reply: str, row: Row) -> float:
    """Return the reward of a reply; raise `RewardError` unless it is a number from 0 to 1."""
    name = getattr(reward, "__qualname__", repr(reward))
    try:
        value: Any = reward(reply, copy.deepcopy(dict(row.fields)))
        score = float(value) if isinstance(value, Real) else math.nan
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise RewardError(f"the reward function {name} failed on {row.place}: {cause}") from error
    if not 0 <= score <= 1:
        returned = f"returned {short(value)} for {row.place}"
        raise RewardError(f"the reward function {name} {returned}; expected a number from 0 to 1")
    return score
