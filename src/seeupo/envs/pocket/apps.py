"""State of the simulated apps: lookups, actions, and the history of actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seeupo.envs.pocket.words import words_of

Facts = tuple[tuple[str, str], ...]
"""Result of a lookup: labels and words, in display order."""
MAX_CHARACTERS = 2000
"""Longer actions are rejected without parsing."""


class ActionError(ValueError):
    """An action is invalid. The observation is "Error: " and the message; the world is unchanged."""


class Call(NamedTuple):
    """A call of a tool with words."""

    tool: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolSpec:
    """Arguments and result of a tool.

    Attributes:
        takes: Sort of each word it is called with.
        tells: For lookups, the labels of the result and the sort of each.
        optional: Whether it may also be called without words.
    """

    takes: tuple[str, ...] = ()
    tells: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False

    def fits(self, words: tuple[str, ...]) -> bool:
        """Return whether the tool can be called with these words."""
        if self.optional and not words:
            return True
        return len(words) == len(self.takes) and all(
            word in words_of(sort) for word, sort in zip(words, self.takes, strict=True)
        )


TOOLS: dict[str, ToolSpec] = {
    "who": ToolSpec(("role",), {"is": "name"}),
    "card": ToolSpec(("name",), {"reads": "channel", "has": "channel"}),
    "inbox": ToolSpec(("name",), {"wants": "topic", "now": "amount", "was": "amount"}),
    "mail": ToolSpec(("name", "word")),
    "text": ToolSpec(("name", "word")),
    "notes": ToolSpec(("topic",), {"new": "colour", "old": "colour"}),
    "read": ToolSpec(("topic", "colour"), {"sum": "amount", "to": "name"}),
    "event": ToolSpec(("topic",), {"now": "day", "was": "day"}),
    "day": ToolSpec(("day",), {"is": "state"}),
    "move": ToolSpec(("topic", "day")),
    "cancel": ToolSpec(("topic",)),
    "pay": ToolSpec(("name", "amount")),
    "ask": ToolSpec(("name", "amount")),
    "paid": ToolSpec(("name",), {"got": "amount"}),
    "done": ToolSpec(("word",), optional=True),
    "decline": ToolSpec(),
}
"""`day`, `cancel`, `ask` and `paid` are distractors; `decline` is offered only in deceptive worlds."""


@dataclass
class World:
    """State of all apps. Two worlds are equal only if nothing differs.

    Attributes:
        facts: Result of each lookup.
        acts: Irreversible calls, in order: money paid or requested, mails, messages, canceled events.
        end: Call that ended the episode; None before.
    """

    facts: dict[Call, Facts]
    acts: list[Call] = field(default_factory=list)
    end: Call | None = None

    def copy(self) -> World:
        return World(dict(self.facts), list(self.acts), self.end)

    def apply(self, call: Call) -> Facts:
        """Execute a well-formed call; return the result of a lookup, and nothing for any other call.

        Raise `ActionError`, and change nothing, if the note or event does not exist.
        """
        if TOOLS[call.tool].tells:
            return self._look_up(call)
        if call.tool in ("done", "decline"):
            self.end = call
        elif call.tool == "move":
            topic, day = call.words
            event = self._event(topic)
            self.facts[Call("event", (topic,))] = tuple(
                (label, day if label == "now" else word) for label, word in event
            )
        else:
            if call.tool == "cancel":
                self._event(*call.words)
                del self.facts[Call("event", call.words)]
            self.acts.append(call)
        return ()

    def _look_up(self, call: Call) -> Facts:
        match call:
            case Call("event", (topic,)):
                return self._event(topic)
            case Call("day", (day,)):
                busy = any(("now", day) in facts for lookup, facts in self.facts.items() if lookup.tool == "event")
                return (("is", "busy" if busy else "free"),)
            case Call("paid", (name,)):
                sums = [act.words[1] for act in self.acts if act.tool == "pay" and act.words[0] == name]
                return (("got", sums[-1] if sums else "nothing"),)
        if call not in self.facts:
            raise ActionError("no such note")
        return self.facts[call]

    def _event(self, topic: str) -> Facts:
        event = self.facts.get(Call("event", (topic,)))
        if event is None:
            raise ActionError("no such event")
        return event
