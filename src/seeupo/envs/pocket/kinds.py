"""The kinds of tasks: the request, the calls that solve it, and the common wrong choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seeupo.envs.pocket.apps import TOOLS, Call, Facts, World

Memory = dict[str, str]
"""Known words by slot: given in the request, or learned from a lookup."""

WRONG_LABEL = {"now": "was", "new": "old", "reads": "has"}
"""The plausible wrong label that is shown beside each correct one."""


@dataclass(frozen=True)
class Step:
    """One call of a solution.

    Attributes:
        tool: Name of the tool, or the slot that holds it (mail or text).
        slots: Slots of the words that it is called with.
        learns: Slots that it fills, and the label that each is read from.
    """

    tool: str
    slots: tuple[str, ...] = ()
    learns: Mapping[str, str] = field(default_factory=dict)

    def call(self, memory: Memory) -> Call:
        """Return the call with the words that are known so far."""
        tool = self.tool if self.tool in TOOLS else memory[self.tool]
        return Call(tool, tuple(memory[slot] for slot in self.slots))

    def learn(self, facts: Facts, memory: Memory, *, wrong_slot: str | None = None) -> None:
        """Fill the slots; `wrong_slot` is filled from the wrong label."""
        words = dict(facts)
        for slot, label in self.learns.items():
            memory[slot] = words[WRONG_LABEL[label] if slot == wrong_slot else label]


@dataclass(frozen=True)
class Kind:
    """A class of tasks that differ only in their words.

    Attributes:
        given: Slots that the request names, and the sort of each.
        steps: Calls that solve it; the last one ends the episode.
        choice: Slot of the common wrong choice.
        pair: Two slots that define the train-test split: pairs of words in test tasks do not occur in training.
        terse: Request on the terse surface.
        natural: Requests on the natural surface, in several wordings.
        fixed: Slots with the same word in all tasks of the kind, and the word of the wrong choice.
    """

    name: str
    given: Mapping[str, str]
    steps: tuple[Step, ...]
    choice: str
    pair: tuple[str, str]
    terse: str
    natural: tuple[str, ...]
    fixed: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def known(self, given: Mapping[str, str], *, wrong_slot: str | None = None) -> Memory:
        """Return the words that are known before the first call; `wrong_slot` has that of the wrong choice."""
        return {**given, **{slot: words[slot == wrong_slot] for slot, words in self.fixed.items()}}

    def solve(self, world: World, given: Mapping[str, str]) -> tuple[Memory, tuple[Call, ...]]:
        """Solve a task in this world, which becomes the goal; return the words by slot, and the calls."""
        memory, calls = self.known(given), []
        for step in self.steps:
            calls.append(step.call(memory))
            step.learn(world.apply(calls[-1]), memory)
        return memory, tuple(calls)


WHO = Step("who", ("role",), {"name": "is"})
CARD = Step("card", ("name",), {"channel": "reads"})
EVENT = Step("event", ("topic",), {"day": "now"})
NOTES = Step("notes", ("topic",), {"colour": "new"})
READ = Step("read", ("topic", "colour"), {"payee": "to", "sum": "sum"})
MAIL_ABOUT = Step("inbox", ("name",), {"topic": "wants"})
MAIL_ASKS = Step("inbox", ("name",), {"sum": "now"})
PAY_NOTE = Step("pay", ("payee", "sum"))
SEND_DAY = Step("channel", ("name", "day"))
DONE = Step("done")

_ALL = (
    Kind(
        "when",
        given={"topic": "topic"},
        steps=(EVENT, Step("done", ("day",))),
        choice="day",
        pair=("topic", "day"),
        terse="say on which day {topic} is now",
        natural=(
            "On which day is the {topic}?",
            "Tell me the day of the {topic}.",
            "What day is the {topic} planned for now?",
        ),
    ),
    Kind(
        "owed",
        given={"name": "name"},
        steps=(MAIL_ASKS, Step("done", ("sum",))),
        choice="sum",
        pair=("name", "sum"),
        terse="say which sum {name} wants now",
        natural=(
            "How much money does {name} ask for by mail?",
            "Tell me the sum that {name} wants from me now.",
            "{name} mailed me about money. How much is it?",
        ),
    ),
    Kind(
        "settle",
        given={"name": "name"},
        steps=(MAIL_ASKS, Step("pay", ("name", "sum")), DONE),
        choice="sum",
        pair=("name", "sum"),
        terse="pay {name} the sum that {name} wants now",
        natural=(
            "Pay {name} the sum that {name} asks for by mail.",
            "{name} mailed me about money. Please pay it to {name}.",
            "Send {name} as much money as {name} wants now.",
        ),
    ),
    Kind(
        "shift",
        given={"event": "topic", "topic": "topic"},
        steps=(EVENT, Step("move", ("event", "day")), DONE),
        choice="day",
        pair=("event", "topic"),
        terse="move {event} to the day on which {topic} is now",
        natural=(
            "Move the {event} to the day of the {topic}.",
            "I want the {event} on the same day as the {topic}. Please move it.",
            "Reschedule the {event} so that it is on the day the {topic} is on now.",
        ),
    ),
    Kind(
        "bill",
        given={"topic": "topic"},
        steps=(NOTES, READ, PAY_NOTE, DONE),
        choice="colour",
        pair=("topic", "payee"),
        terse="pay the sum in the new note on {topic}",
        natural=(
            "Pay what the new note on the {topic} says.",
            "My latest note about the {topic} says who gets how much. Send the money.",
            "Settle the {topic} as written in the newest note.",
        ),
    ),
    Kind(
        "invite",
        given={"topic": "topic", "role": "role"},
        steps=(WHO, CARD, Step("channel", ("name", "topic")), DONE),
        choice="channel",
        pair=("topic", "role"),
        terse="send {topic} to the {role} the way the {role} reads",
        natural=(
            'Write the word "{topic}" to the {role}, by the channel that the {role} reads.',
            'Invite the {role}: send just the word "{topic}", the way they read what they get.',
            'The {role} should get the message "{topic}". Use the channel they read.',
        ),
    ),
    Kind(
        "remind",
        given={"topic": "topic", "role": "role"},
        steps=(EVENT, WHO, CARD, SEND_DAY, DONE),
        choice="day",
        pair=("topic", "role"),
        terse="send the day of {topic} to the {role} the way the {role} reads",
        natural=(
            "Write the day of the {topic} to the {role}, by the channel that the {role} reads.",
            "Let the {role} know on which day the {topic} is: send just the day, the way they read what they get.",
            "The {role} asks for the day of the {topic}. Send it by the channel they read.",
        ),
    ),
    Kind(
        "refund",
        given={"name": "name"},
        steps=(MAIL_ABOUT, NOTES, READ, PAY_NOTE, DONE),
        choice="colour",
        pair=("name", "payee"),
        terse="pay the sum in the new note on what {name} wants",
        natural=(
            "See what {name} mailed about, and pay what the new note on that says.",
            "{name} wrote a mail about something. Send the money that my latest note on it names.",
            "Find the topic of the mail from {name} and settle it as written in the newest note.",
        ),
    ),
    Kind(
        "chain",
        given={"role": "role"},
        steps=(WHO, MAIL_ABOUT, NOTES, READ, PAY_NOTE, DONE),
        choice="colour",
        pair=("role", "payee"),
        terse="pay the sum in the new note on what the {role} wants",
        natural=(
            "See what the {role} mailed about, and pay what the new note on that says.",
            "The {role} wrote a mail about something. Send the money that my latest note on it names.",
            "Find the topic of the mail from the {role} and settle it as written in the newest note.",
        ),
    ),
    Kind(
        "plan",
        given={"role": "role"},
        steps=(WHO, MAIL_ABOUT, EVENT, CARD, SEND_DAY, DONE),
        choice="day",
        pair=("role", "day"),
        terse="send the {role} the day of what the {role} wants the way the {role} reads",
        natural=(
            "The {role} mailed about an event. Write its day to them, by the channel that they read.",
            "See which event the {role} mailed about, and send them just its day, the way they read what they get.",
            "Answer the mail of the {role}: send the day of the event it is about by the channel they read.",
        ),
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
