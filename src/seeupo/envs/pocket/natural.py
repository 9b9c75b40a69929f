"""The natural surface: requests in plain English, JSON tool calls and JSON answers, for language models."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seeupo.envs.pocket.apps import MAX_CHARACTERS, TOOLS, ActionError, Call, Facts
from seeupo.envs.pocket.kinds import Kind
from seeupo.envs.pocket.natural_tools import SORT_DOCS, WORDINGS, ToolDocs, parameters_of, schema_of, signature
from seeupo.envs.pocket.words import SORT_OF, WORDS, words_of
from seeupo.types import Message

RULES = (
    "You run the apps of one person: contacts, mail, messages, notes, calendar and wallet. Look up what you need; what "
    "is newest counts. Money, mails, messages and cancellations cannot be taken back. "
    "Call one tool per turn, like this:\n"
)
SHORT_RULES = "Do the task with the person's apps. What is newest counts. Call one tool per turn, like this:\n"

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DISPLAY: dict[str, str | int] = {
    **{name: name.capitalize() for name in WORDS["name"]},
    **dict(zip(WORDS["day"], _DAYS, strict=True)),
    **{amount: int(amount) for amount in WORDS["amount"]},
}
_DECODER = json.JSONDecoder()
_WORDS = {word: word for word in SORT_OF} | {str(shown).lower(): word for word, shown in _DISPLAY.items()}


class NaturalSurface:
    """Actions are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` or the bare JSON; the first one counts."""

    def __init__(self, tools: tuple[str, ...], *, docs: ToolDocs = "full") -> None:
        self.tools = tools
        self._offered = {WORDINGS[tool].name: tool for tool in tools}
        self.schemas = tuple(schema_of(tool) for tool in tools) if docs == "full" else ()
        example = Call(tools[0], tuple(words_of(sort)[0] for sort in TOOLS[tools[0]].takes))
        lines = [(RULES if docs == "full" else SHORT_RULES) + self.write(example)]
        if docs == "signatures":
            lines += [f"{signature(tool)}: {WORDINGS[tool].short}" for tool in tools]
        self._system = Message("system", "\n".join(lines))

    def opening(self, kind: Kind, given: Mapping[str, str], *, phrasing: int) -> tuple[Message, ...]:
        """Return the rules, and the request in one of its wordings, which `phrasing` selects."""
        request = kind.natural[phrasing % len(kind.natural)]
        request = request.format(**{slot: _display(word) for slot, word in given.items()})
        if "decline" in self.tools:
            request += " You may also decline."
        return self._system, Message("user", request)

    def parse(self, text: object) -> Call:
        """Parse the first JSON object after the first `<tool_call>`, or the first one of all.

        Raise `ActionError` if it is not a call of an offered tool.
        """
        name, arguments = _read_json_call(text)
        tool = self._offered.get(name) if isinstance(name, str) else None
        if tool is None:
            raise ActionError(f"there is no tool {_quote(name)}; the tools are {', '.join(self._offered)}")
        if not isinstance(arguments, dict):
            raise ActionError(f"the arguments of {name} are {_quote(arguments)}; they must be a JSON object")
        if TOOLS[tool].optional and not arguments:
            return Call(tool)
        if set(arguments) != set(WORDINGS[tool].parameters):
            raise ActionError(f"the arguments are {_quote(', '.join(arguments))}; call it as {signature(tool)}")
        return Call(tool, tuple(_parse_word(arguments[key], key, sort) for key, sort in parameters_of(tool)))

    def write(self, call: Call) -> str:
        """Return the action that `parse` reads as this call, with `<tool_call>` tags."""
        wording = WORDINGS[call.tool]
        arguments = dict(zip(wording.parameters, map(_display, call.words), strict=False))  # an answer is optional
        body = json.dumps({"name": wording.name, "arguments": arguments})
        return f"<tool_call>{body}</tool_call>"

    def show(self, call: Call, facts: Facts) -> str:
        """Return the words and the result of a lookup as a JSON object."""
        if not facts:
            return '{"ok": true}'
        wording = WORDINGS[call.tool]
        words = dict(zip(wording.parameters, call.words, strict=True))
        words |= {wording.labels.get(label, label): word for label, word in facts}
        return json.dumps({key: _display(word) for key, word in words.items()})


def _read_json_call(text: object) -> tuple[object, object]:
    """Return name and arguments, unchecked."""
    if not isinstance(text, str):
        raise ActionError("the action is not text; call one tool as JSON")
    if len(text) > MAX_CHARACTERS:
        raise ActionError(f"the action has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    start = text.find("{", max(text.find("<tool_call>"), 0))
    if start < 0:
        raise ActionError("no tool call; write one as JSON with name and arguments")
    try:
        call, _ = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        raise ActionError("the tool call is not valid JSON") from None
    return call.get("name"), call.get("arguments", {})


def _display(word: str) -> str | int:
    return _DISPLAY.get(word, word)


def _parse_word(value: object, key: str, sort: str) -> str:
    """Return the word that an argument stands for; case does not matter."""
    word = _WORDS.get(str(value).lower() if isinstance(value, str | int) else "")
    if word is None or word not in words_of(sort):
        raise ActionError(f"{key} is {_quote(value)}; it must be {SORT_DOCS[sort]}")
    return word


def _quote(value: object) -> str:
    """Return a hostile value as a few printable characters."""
    if not isinstance(value, str | int):
        return f"a JSON {type(value).__name__}"
    # Cut again after escaping: one character may have become ten.
    return f"'{ascii(str(value)[:40])[1:-1][:60]}'"
