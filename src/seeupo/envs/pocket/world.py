"""The apps of the world: what can be looked up in them, what can be done, and what has been done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seeupo.envs.pocket.words import words_of

Facts = tuple[tuple[str, str], ...]
"""What a lookup says: labels and words, in the order in which they are shown."""


class ActionError(ValueError):
    """An action that cannot be taken. The policy reads the message after "Error: "; the world is as it was."""


class Call(NamedTuple):
    """A tool and the words it is called with."""

    tool: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolSpec:
    """What a tool takes and tells.

    Attributes:
        takes: the sort of each word it is called with.
        tells: for lookups, the labels of what it says and the sort of each.
        optional: it may also be called without words.
    """

    app: str
    takes: tuple[str, ...] = ()
    tells: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False

    def fits(self, words: tuple[str, ...]) -> bool:
        """Whether the tool can be called with these words."""
        if self.optional and not words:
            return True
        return len(words) == len(self.takes) and all(
            word in words_of(sort) for word, sort in zip(words, self.takes, strict=True)
        )


TOOLS: dict[str, ToolSpec] = {
    "who": ToolSpec("contacts", ("role",), {"is": "name"}),
    "card": ToolSpec("contacts", ("name",), {"reads": "channel", "has": "channel"}),
    "inbox": ToolSpec("mail", ("name",), {"wants": "topic", "now": "amount", "was": "amount"}),
    "mail": ToolSpec("mail", ("name", "word")),
    "text": ToolSpec("messages", ("name", "word")),
    "notes": ToolSpec("notes", ("topic",), {"new": "colour", "old": "colour"}),
    "read": ToolSpec("notes", ("topic", "colour"), {"sum": "amount", "to": "name"}),
    "event": ToolSpec("calendar", ("topic",), {"now": "day", "was": "day"}),
    "day": ToolSpec("calendar", ("day",), {"is": "state"}),
    "move": ToolSpec("calendar", ("topic", "day")),
    "cancel": ToolSpec("calendar", ("topic",)),
    "pay": ToolSpec("wallet", ("name", "amount")),
    "ask": ToolSpec("wallet", ("name", "amount")),
    "paid": ToolSpec("wallet", ("name",), {"got": "amount"}),
    "done": ToolSpec("task", ("word",), optional=True),
    "decline": ToolSpec("task"),
}
"""`day`, `cancel`, `ask` and `paid` serve no task; `decline` is there in deceptive worlds only."""


@dataclass
class World:
    """The state of all apps. Two worlds are equal when nothing at all differs.

    Attributes:
        facts: what each lookup says.
        acts: what was done and cannot be undone, in order: money paid or asked for, mails, messages, cancelled events.
        end: the call that ended the episode.
    """

    facts: dict[Call, Facts]
    acts: list[Call] = field(default_factory=list)
    end: Call | None = None

    def copy(self) -> World:
        """The same world, to be changed apart."""
        return World(dict(self.facts), list(self.acts), self.end)

    def apply(self, call: Call) -> Facts:
        """Do what a well-formed call asks for; what a lookup says, and nothing for an act.

        Raises:
            ActionError: there is nothing that the call could be about. Nothing has changed then.
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
