"""Build the prompt of each call of an agent program from the messages that it sends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from seeupo.rollout.chat import ChatFormat
from seeupo.rollout.template import with_tools
from seeupo.types import Message, Tool

MessageKey = tuple[str, tuple[tuple[str, str], ...]]
"""What identifies a response in a history: its content, and names and canonical JSON arguments of its calls."""


@dataclass(frozen=True, slots=True)
class Written:
    """A response of the policy: the prompt that it was sampled after, and its sampled tokens."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass
class Transcript:
    """What the policy wrote in one episode.

    Where a program sends a response back, its sampled tokens are spliced into the prompt, also if it was serialized
    again. Other assistant messages, as of a rewritten history, are rendered from their text.
    """

    chat: ChatFormat
    _written: dict[MessageKey, list[Written]] = field(default_factory=dict, repr=False)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return the prompt of the next response after these messages."""
        responses = [number for number, message in enumerate(messages) if message.role == "assistant"]
        bounds = [*responses, len(messages)]
        first = messages[: bounds[0]]
        ids = self.chat.opening(first if self.chat.native_tools else with_tools(first, tools), tools)
        for number, following in pairwise(bounds):
            response = self._ids_of(messages[number], ids)
            ids += self.chat.spliced(response, messages[number + 1 : following])
        return ids

    def add(self, message: Message, prompt_ids: tuple[int, ...], ids: tuple[int, ...]) -> None:
        """Add a response, as the program receives it and as it was sampled."""
        self._written.setdefault(_key(message), []).append(Written(prompt_ids, ids))

    def _ids_of(self, message: Message, before: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of an assistant message after a prompt; of equal responses, that of this prompt if any."""
        candidates = self._written.get(_key(message), [])
        if not candidates:
            return self.chat.response(self.chat.response_text(message))
        return next((written.ids for written in candidates if written.prompt_ids == before), candidates[-1].ids)


def _key(message: Message) -> MessageKey:
    calls = tuple((call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in message.tool_calls)
    return message.content, calls
