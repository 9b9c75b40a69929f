"""Factory of the AppWorld environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from seeupo.envs.appworld.appworld_env import AppWorldEnv
from seeupo.envs.appworld.engine_client import Engine
from seeupo.envs.appworld.scorer import Scorer
from seeupo.envs.appworld.task_data import SPLITS, data_folder, task_ids
from seeupo.protocols import Expert
from seeupo.types import Task


class AppWorldFactory:
    """Provides AppWorld's tasks.

    The same class serves two kinds of workers. Those that run model code see no answers and use only `make`; the
    judge, which never runs model code, uses the other methods.
    """

    def __init__(self, *, data: str | None = None, execution_seconds: int = 60) -> None:
        """Find the tasks; if they are missing, the error says how to download them.

        Args:
            data: Folder with AppWorld's tasks. Default: `appworld/data` in the cache folder.
            execution_seconds: Wall-clock limit of one action's code.
        """
        self.data = data_folder(data)
        self.execution_seconds = execution_seconds

    @property
    def splits(self) -> Sequence[str]:
        return [name for name in SPLITS if (self.data / "datasets" / f"{name}.txt").is_file()]

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(name, split, kind=self._difficulty(name)) for name in task_ids(self.data, split)]

    def make(self) -> AppWorldEnv:
        """Create an environment. Only one episode can run in a process: AppWorld freezes the clock, for example."""
        return AppWorldEnv(self._engine, execution_seconds=self.execution_seconds)

    def expert(self, task: Task) -> Expert | None:
        """Return an expert that runs AppWorld's solution in one action; None for the test splits, which have none."""
        solution = self._ground_truth(task.id) / "compiled_solution.py"
        if not solution.is_file():
            return None
        # Solutions assume that calls return errors instead of raising them.
        call = "requester.raise_on_failure = False\nsolution(apis, requester)"
        action = f"```python\n{solution.read_text(encoding='utf-8').strip()}\n\n{call}\n```"
        return lambda _: action

    def judge(self, task: Task, saved: Any) -> float:
        """Return the official success, 0 or 1, of a state that an episode of the task has saved."""
        return self._scorer.score(task.id, saved)

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self.data)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self.data)

    def _ground_truth(self, task: str) -> Path:
        return self.data / "tasks" / task / "ground_truth"

    def _difficulty(self, task: str) -> str:
        metadata = self._ground_truth(task) / "metadata.json"
        return f"difficulty {json.loads(metadata.read_text())['difficulty']}" if metadata.is_file() else ""
