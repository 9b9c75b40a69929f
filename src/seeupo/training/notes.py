"""Callbacks about notes: alarms become notes, and without a display notes are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seeupo.callbacks import Callback
from seeupo.config.schema import Recipe
from seeupo.runs.alarms import Alarms
from seeupo.utils.text import one_line

LOGGER = logging.getLogger("seeupo")


class AlarmNotes(Callback):
    """Checks every record of a run for problems, and calls `notify` with the messages of its alarms."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify

    def on_start(self, recipe: Recipe, run_dir: Path) -> None:
        from seeupo.models.precision import resolve_device

        on_cpu = resolve_device(recipe.model.device).type == "cpu"
        self._settings = (recipe.model.dtype, (recipe.run.threads or 1) if on_cpu else 1)
        self.on_resume(())

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._alarms = Alarms(*self._settings)
        for record in records:
            self._alarms.check(record)

    def on_record(self, record: Mapping[str, Any]) -> None:
        for message in self._alarms.check(record):
            self.notify(message)


class LoggedNotes(Callback):
    """Logs the notes of a run that has no display."""

    def on_note(self, text: str) -> None:
        LOGGER.warning("%s", one_line(text))
