"""The natural surface: requests in plain English, JSON tool calls and JSON answers, for language models."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seeupo.envs.pocket.kinds import Kind
from seeupo.envs.pocket.natural_tools import SORT_DOCS, WORDINGS, ToolDocs, parameters_of, schema_of, signature
from seeupo.envs.pocket.surface import MAX_CHARACTERS
from seeupo.envs.pocket.words import SORT_OF, WORDS, words_of
from seeupo.envs.pocket.world import TOOLS, ActionError, Call, Facts
from seeupo.types import Message

RULES = (
    "You run the apps of one person: contacts, mail, messages, notes, calendar and wallet. Look up what you need; what "
    "is newest counts. Money, mails, messages and cancellations cannot be taken back. "
    "Call one tool per turn, like this:\n"
)
SHORT_RULES = "Do the task with the person's apps. What is newest counts. Call one tool per turn, like this:\n"

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SPOKEN: dict[str, str | int] = {
    **{name: name.capitalize() for name in WORDS["name"]},
    **dict(zip(WORDS["day"], _DAYS, strict=True)),
    **{amount: int(amount) for amount in WORDS["amount"]},
}
_DECODER = json.JSONDecoder()
_HEARD = {word: word for word in SORT_OF} | {str(spoken).lower(): word for word, spoken in _SPOKEN.items()}


class NaturalSurface:
    """Actions are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` or the bare JSON; the first one counts."""

    def __init__(self, tools: tuple[str, ...], *, docs: ToolDocs = "full") -> None:
        self.tools = tools
        self._offered = {WORDINGS[tool].name: tool for tool in tools}
        self.schemas = () if docs == "signatures" else tuple(schema_of(tool, docs) for tool in tools)
        example = Call(tools[0], tuple(words_of(sort)[0] for sort in TOOLS[tools[0]].takes))
        lines = [(RULES if docs == "full" else SHORT_RULES) + self.write(example)]
        if docs == "signatures":
            lines += [f"{signature(tool)}: {WORDINGS[tool].short}" for tool in tools]
        self._system = Message("system", "\n".join(lines))

    def opening(self, kind: Kind, given: Mapping[str, str], *, phrasing: int) -> tuple[Message, ...]:
        """The rules, and the request in one of its wordings."""
        request = kind.natural[phrasing % len(kind.natural)]
        request = request.format(**{slot: _say(word) for slot, word in given.items()})
        if "decline" in self.tools:
            request += " You may also decline."
        return self._system, Message("user", request)

    def parse(self, text: object) -> Call:
        """Read the first JSON object after the first `<tool_call>`, or the first one at all."""
        name, arguments = _read_json_call(text)
        tool = self._offered.get(name) if isinstance(name, str) else None
        if tool is None:
            raise ActionError(f"there is no tool {_shown(name)}; the tools are {', '.join(self._offered)}")
        if not isinstance(arguments, dict):
            raise ActionError(f"the arguments of {name} are {_shown(arguments)}; they must be a JSON object")
        if TOOLS[tool].optional and not arguments:
            return Call(tool)
        if set(arguments) != set(WORDINGS[tool].parameters):
            raise ActionError(f"the arguments are {_shown(', '.join(arguments))}; call it as {signature(tool)}")
        return Call(tool, tuple(_hear(arguments[key], key, sort) for key, sort in parameters_of(tool)))

    def write(self, call: Call) -> str:
        """The call as JSON, in its tags."""
        wording = WORDINGS[call.tool]
        arguments = dict(zip(wording.parameters, map(_say, call.words), strict=False))  # an answer may be left out
        body = json.dumps({"name": wording.name, "arguments": arguments})
        return f"<tool_call>{body}</tool_call>"

    def show(self, call: Call, facts: Facts) -> str:
        """What a lookup was about and what it says, as a JSON object."""
        if not facts:
            return '{"ok": true}'
        wording = WORDINGS[call.tool]
        said = dict(zip(wording.parameters, call.words, strict=True))
        said |= {wording.labels.get(label, label): word for label, word in facts}
        return json.dumps({key: _say(word) for key, word in said.items()})


def _read_json_call(text: object) -> tuple[object, object]:
    """Name and arguments, whatever they are."""
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


def _say(word: str) -> str | int:
    return _SPOKEN.get(word, word)


def _hear(value: object, key: str, sort: str) -> str:
    """The word of the world that an argument means, whether or not it is capitalised."""
    spoken = str(value).lower() if isinstance(value, str | int) else ""
    word = _HEARD.get(spoken)
    if word is None or word not in words_of(sort):
        raise ActionError(f"{key} is {_shown(value)}; it must be {SORT_DOCS[sort]}")
    return word


def _shown(value: object) -> str:
    """A hostile value, in a few plain characters."""
    # Cut when it is escaped: one character may have become ten.
    return (
        f"'{ascii(str(value)[:40])[1:-1][:60]}'" if isinstance(value, str | int) else f"a JSON {type(value).__name__}"
    )
