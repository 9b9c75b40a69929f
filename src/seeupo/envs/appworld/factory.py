"""AppWorld with its splits, as an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seeupo.envs.appworld.data import SPLITS, data_folder, task_ids
from seeupo.envs.appworld.engine import Engine
from seeupo.envs.appworld.env import AppWorldEnv
from seeupo.envs.appworld.scorer import Scorer
from seeupo.envs.observation import LONGEST_OBSERVATION
from seeupo.types import Expert, StepResult, Task


class AppWorldFactory:
    """The tasks of AppWorld.

    The same class serves in two kinds of workers. In those that run model code, the place of the data shows no answers
    and only `make` is of use; `judge` and `expert` belong to workers that never run model code.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        execution_seconds: int = 60,
        observation_characters: int = LONGEST_OBSERVATION,
        memory_mb: int = 2048,
    ) -> None:
        """Look for the tasks; raises an error that says how to fetch them.

        Args:
            data: the folder with AppWorld's tasks, if it is not in the environment's own folder.
            execution_seconds: wall-clock limit of running one action's code.
            observation_characters: longer output is cut.
            memory_mb: address space of the process that runs an episode's code.
        """
        self.data = data_folder(data)
        self.execution_seconds = execution_seconds
        self.observation_characters = observation_characters
        self.memory_mb = memory_mb
        self.engine: Engine | None = None
        self.scorer: Scorer | None = None

    @property
    def splits(self) -> Sequence[str]:
        return [name for name in SPLITS if (self.data / "datasets" / f"{name}.txt").is_file()]

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(name, split, kind=self._difficulty(name)) for name in task_ids(self.data, split)]

    def make(self) -> AppWorldEnv:
        """An episode's world. There can be one at a time in a process: AppWorld freezes the clock, and so on."""
        if self.engine is None:
            self.engine = Engine(self.data, memory_mb=self.memory_mb)
        return AppWorldEnv(
            self.engine,
            execution_seconds=self.execution_seconds,
            observation_characters=self.observation_characters,
        )

    def expert(self, task: Task) -> Expert | None:
        """AppWorld's own solution, run in one action; None for the test splits, which come without."""
        solution = self._ground_truth(task.id) / "compiled_solution.py"
        if not solution.is_file():
            return None
        # Solutions were written for calls that return errors instead of raising them.
        call = "requester.raise_on_failure = False\nsolution(apis, requester)"
        action = f"```python\n{solution.read_text(encoding='utf-8').strip()}\n\n{call}\n```"

        def play(_: StepResult) -> str:
            return action

        return play

    def judge(self, task: Task, saved: Any) -> float:
        """The official success, 0 or 1, of a state that an episode of the task has saved."""
        if self.scorer is None:
            self.scorer = Scorer(self.data)
        return self.scorer.score(task.id, saved)

    def _ground_truth(self, task: str) -> Path:
        return self.data / "tasks" / task / "ground_truth"

    def _difficulty(self, task: str) -> str:
        metadata = self._ground_truth(task) / "metadata.json"
        return f"difficulty {json.loads(metadata.read_text())['difficulty']}" if metadata.is_file() else ""
