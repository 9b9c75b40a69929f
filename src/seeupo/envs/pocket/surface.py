"""How a policy sees the world and speaks to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from seeupo.envs.pocket.kinds import Kind
from seeupo.envs.pocket.world import Call, Facts
from seeupo.types import Message, Tool

MAX_CHARACTERS = 2000
"""Longer actions are refused unread."""


class Surface(Protocol):
    """One way to put tasks, calls and what they say into text."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are offered; no other can be called."""

    @property
    def schemas(self) -> tuple[Tool, ...]:
        """The tools as JSON schemas, where the surface hands them over."""

    def opening(self, kind: Kind, given: Mapping[str, str], *, phrasing: int) -> tuple[Message, ...]:
        """The first messages of a task; `phrasing` picks one of the wordings there are."""

    def parse(self, text: object) -> Call:
        """Read an action: hostile text, or no text at all.

        Raises:
            ActionError: it is not a well-formed call of a tool that is offered.
        """

    def write(self, call: Call) -> str:
        """The action that `parse` reads as this call."""

    def show(self, call: Call, facts: Facts) -> str:
        """What the policy reads after the call."""
