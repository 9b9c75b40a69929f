"""Tasks of an agent program from a JSONL file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as short

from seeupo.errors import EnvError
from seeupo.protocols import Env, Expert
from seeupo.types import Task
from seeupo.utils.json_lines import UnreadableLines, parse_object, read_lines

HELD_OUT = 0.2
"""Share of the tasks without a split that are held out for evaluation, by a hash of their ids."""


class TaskFileFactory:
    """Provides tasks from a file. An agent program attempts them, so there is no environment."""

    splits = ("train", "test")

    def __init__(self, *, path: str) -> None:
        """Read the file.

        Args:
            path: File with one JSON object per line, the `payload` of a task. The fields "id" (default: the line
                number), "kind" and "split" ("train" or "test") are those of the task. Without a split, one task in
                five is held out, chosen by a hash of its id.
        """
        self._tasks: dict[str, Task] = {}
        file = Path(path).expanduser()
        try:
            for number, line in enumerate(read_lines(file), 1):
                if line.strip():
                    self._add(line, number)
        except (UnreadableLines, ValueError) as error:
            raise EnvError(f"{path}: {error}") from None
        for split in self.splits:
            if not self.tasks(split):
                raise EnvError(
                    f'{path}: no task is in the split "{split}"; expected at least one. Add more tasks, or give them '
                    '"split": "train" or "test"'
                )

    def _add(self, line: bytes, number: int) -> None:
        fields = parse_object(line)
        name = fields.get("id", f"{number:06d}")
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            raise ValueError(f'line {number}: "id" is {short(name)}; expected a string or an integer')
        if str(name) in self._tasks:
            raise ValueError(f"line {number}: the id {short(name)} is already used")
        split = fields.get("split", _split_of(str(name)))
        if split not in self.splits:
            raise ValueError(f'line {number}: "split" is {short(split)}; expected "train" or "test"')
        kind = fields.get("kind", "")
        if not isinstance(kind, str):
            raise ValueError(f'line {number}: "kind" is {short(kind)}; expected a string')
        self._tasks[str(name)] = Task(str(name), split, kind=kind, payload=fields)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split in the order of the file."""
        return [task for task in self._tasks.values() if task.split == split]

    def make(self) -> Env:
        raise EnvError("tasks of a file have no environment; name the agent program that attempts them: agent.program")

    def expert(self, task: Task) -> Expert | None:
        """Return None: only the agent program knows how to solve a task."""
        return None


def _split_of(name: str) -> str:
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < HELD_OUT * 2**64 else "train"
