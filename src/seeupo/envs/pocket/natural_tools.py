"""Names, parameters and descriptions of the tools on the natural surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seeupo.envs.pocket.apps import TOOLS
from seeupo.types import Tool

ToolDocs = Literal["full", "signatures"]
"""JSON schemas, or one line per tool in the system message."""


@dataclass(frozen=True)
class Wording:
    """Name and descriptions of a tool for a language model; `labels` renames the labels of its result."""

    name: str
    parameters: tuple[str, ...]
    short: str
    full: str
    labels: Mapping[str, str] = field(default_factory=dict)


WORDINGS = {
    "who": Wording("find_contact", ("role",), "who has a role", "Find the contact who has a role.", {"is": "contact"}),
    "card": Wording(
        "show_contact",
        ("name",),
        "which channel a contact reads",
        "Show the card of a contact: the channel (mail or text) that they read, and one that they have but ignore.",
        {"has": "ignores"},
    ),
    "inbox": Wording(
        "read_mail",
        ("sender",),
        "the mail from a contact",
        "Read the mail from a contact: what it is about, the sum they ask for now, and the sum they asked for before.",
        {"wants": "about", "now": "asks_for_now", "was": "asked_for_before"},
    ),
    "mail": Wording("send_mail", ("to", "word"), "mail one word", "Send a contact a mail of one word."),
    "text": Wording("send_text", ("to", "word"), "text one word", "Send a contact a text message of one word."),
    "notes": Wording(
        "list_notes", ("topic",), "notes on a topic", "List the notes on a topic, new and old, by colour."
    ),
    "read": Wording(
        "read_note",
        ("topic", "colour"),
        "a note: a sum and who gets it",
        "Read the note of a colour on a topic: a sum of money and who gets it.",
    ),
    "event": Wording(
        "show_event",
        ("event",),
        "the day of an event",
        "Show the day an event is on now, and the day it was on before.",
    ),
    "day": Wording("check_day", ("day",), "free or busy", "Check whether a day is free or busy.", {"is": "day_is"}),
    "move": Wording("move_event", ("event", "day"), "move an event", "Move an event to another day."),
    "cancel": Wording("cancel_event", ("event",), "cancel an event", "Cancel an event, for good."),
    "pay": Wording("send_money", ("to", "amount"), "pay a contact", "Pay a sum of money to a contact."),
    "ask": Wording("request_money", ("to", "amount"), "ask for money", "Ask a contact for a sum of money."),
    "paid": Wording("show_payment", ("to",), "last payment", "Show the last sum that was paid to a contact."),
    "done": Wording(
        "finish",
        ("answer",),
        "end the task, with the answer to a question",
        "End the task when all is done. If the task is a question, `answer` is the one word or number asked for.",
    ),
    "decline": Wording("decline", (), "decline the task", "Decline the task and leave everything as it is."),
}
SORT_DOCS = {
    "name": "first name of a contact, such as Ann",
    "role": "a role, such as coach",
    "topic": "one word, such as lunch",
    "day": "day of the week",
    "amount": "whole number from 2 to 9",
    "colour": "colour of the note",
    "word": "one word or number",
}


def parameters_of(tool: str) -> list[tuple[str, str]]:
    """Return each parameter of a tool with the sort of word it takes."""
    return list(zip(WORDINGS[tool].parameters, TOOLS[tool].takes, strict=True))


def signature(tool: str) -> str:
    """Return a tool in one line, such as `send_money(to, amount)`."""
    names = ", ".join(WORDINGS[tool].parameters)
    return f"{WORDINGS[tool].name}({names}{'?' if TOOLS[tool].optional else ''})"


def schema_of(tool: str) -> Tool:
    """Return a tool with a JSON schema."""
    wording = WORDINGS[tool]
    properties: dict[str, Any] = {}
    for key, sort in parameters_of(tool):
        json_type = {"amount": "integer", "word": ["string", "integer"]}.get(sort, "string")
        properties[key] = {"type": json_type, "description": SORT_DOCS[sort]}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if not TOOLS[tool].optional:
        schema["required"] = list(wording.parameters)
    return Tool(wording.name, wording.full, schema)
