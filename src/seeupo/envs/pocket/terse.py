"""The terse surface: a few words per turn from a closed vocabulary, for tiny models."""

from __future__ import annotations

from collections.abc import Mapping

from seeupo.envs.pocket.apps import MAX_CHARACTERS, TOOLS, ActionError, Call, Facts
from seeupo.envs.pocket.kinds import KINDS, Kind
from seeupo.envs.pocket.words import CHANNELS, SORT_OF
from seeupo.types import Message, Tool

UNKNOWN_TOOL = "unknown tool"
WRONG_WORDS = "wrong words"
# Errors and results that are not words of a task.
_RESPONSES = ("Error:", UNKNOWN_TOOL, WRONG_WORDS, "no such note event", "ok", "busy free nothing", "or decline")


class TerseSurface:
    """Actions such as `pay bob 5`, observations such as `trip was mon now fri`."""

    schemas: tuple[Tool, ...] = ()

    def __init__(self, tools: tuple[str, ...]) -> None:
        self.tools = tools

    def opening(self, kind: Kind, given: Mapping[str, str], *, phrasing: int) -> tuple[Message, ...]:
        """Return the request, in its only wording. What the tools do must be learned."""
        request = kind.terse.format(**given)
        return (Message("user", f"{request} or decline" if "decline" in self.tools else request),)

    def parse(self, text: object) -> Call:
        """Parse a tool and its words, separated by white space; raise `ActionError` if it is not an offered call."""
        parts = text.split() if isinstance(text, str) and len(text) <= MAX_CHARACTERS else []
        if not parts or parts[0] not in self.tools:
            raise ActionError(UNKNOWN_TOOL)
        call = Call(parts[0], tuple(parts[1:]))
        if not TOOLS[call.tool].fits(call.words):
            raise ActionError(WRONG_WORDS)
        return call

    def write(self, call: Call) -> str:
        """Return the action that `parse` reads as this call."""
        return " ".join((call.tool, *call.words))

    def show(self, call: Call, facts: Facts) -> str:
        """Return the words and the result of a lookup; `ok` after any other call."""
        if not facts:
            return "ok"
        return " ".join((*call.words, *(part for fact in facts for part in fact)))


def vocabulary() -> tuple[str, ...]:
    """Return every word that the terse surface shows or accepts, in alphabetical order."""
    words = {*SORT_OF, *CHANNELS, *TOOLS, *" ".join(_RESPONSES).split()}
    for spec in TOOLS.values():
        words.update(spec.tells)
    for kind in KINDS.values():
        words.update(kind.terse.format(**dict.fromkeys(kind.given, "")).split())
    return tuple(sorted(words))
