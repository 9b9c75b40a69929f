"""Interface of the text formats through which a policy interacts with the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from seeupo.envs.pocket.apps import Call, Facts
from seeupo.envs.pocket.kinds import Kind
from seeupo.types import Message, Tool

MAX_CHARACTERS = 2000
"""Longer actions are rejected without parsing."""


class Surface(Protocol):
    """A text format for tasks, calls and their results."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the offered tools; no other can be called."""

    @property
    def schemas(self) -> tuple[Tool, ...]:
        """The tools with JSON schemas; empty if the surface describes them in text or not at all."""

    def opening(self, kind: Kind, given: Mapping[str, str], *, phrasing: int) -> tuple[Message, ...]:
        """Return the first messages of a task; `phrasing` selects one of the wordings."""

    def parse(self, text: object) -> Call:
        """Parse an action, which may be hostile text or not even a string.

        Raises:
            ActionError: The action is not a well-formed call of an offered tool.
        """

    def write(self, call: Call) -> str:
        """Return the action that `parse` reads as this call."""

    def show(self, call: Call, facts: Facts) -> str:
        """Return the observation after the call."""
