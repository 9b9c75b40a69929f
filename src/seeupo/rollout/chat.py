"""Chat formats: convert messages to tokens without re-tokenizing sampled responses (token splicing).

A chat template is rendered for two kinds of constant text: the opening before the first response, and the text between
two responses. Sampled ids are spliced between them and never rendered again.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from seeupo.errors import ModelError
from seeupo.models.chat_templates import PLAIN_TEMPLATE, TemplateLimitError, render
from seeupo.rollout.reasoning import CLOSE
from seeupo.types import Message, Tool, ToolCall

Key = TypeVar("Key")
Value = TypeVar("Value")

PLACEHOLDER = "\u241e"
"""Stand-in for a response when a template is rendered."""
FIRST_ESCAPE = 0x10F000
"""First of the private characters that stand for the texts of control tokens in messages, until they are encoded."""
CACHE_SIZE = 4096
"""Maximum number of cached texts."""
PROBE_CALL = ToolCall("probe_call", {"probe_key": "probe_value"})
PROBE_TOOL = Tool("probe_tool", "A probe.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})


@dataclass(frozen=True)
class ChatFormat:
    """The conversation format of a tokenizer; `chat_format` probes its template for the attributes.

    Attributes:
        template: Chat template in Jinja.
        native_tools: Whether the template renders tool schemas.
        native_calls: Whether the template renders tool calls; otherwise they are JSON in <tool_call> tags.
        tool_role: Whether the template supports messages of role "tool"; otherwise they become user messages.
        control_tokens: Texts of special tokens. Only the template writes these tokens: the same text in a message or a
            tool is encoded as ordinary characters.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str
    native_tools: bool
    native_calls: bool
    tool_role: bool
    control_tokens: tuple[str, ...] = ()
    _ids: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return the tokens before the first response."""
        return _cached(self._ids, repr((messages, tools)), lambda: self.encode(self._render(messages, tools)))

    def between(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens between two responses, with these messages in the middle."""
        return _cached(self._ids, repr(messages), lambda: self.encode(self.text_between(messages)))

    def spliced(self, response: tuple[int, ...], messages: Sequence[Message]) -> tuple[int, ...]:
        """Return a response and the tokens between it and the next, with these messages in the middle."""
        after = self.between(messages)
        # A complete response has already sampled the end-of-turn token.
        return response + (after[1:] if response and after[:1] == response[-1:] else after)

    def text_between(self, messages: Sequence[Message]) -> str:
        """Return the text that `between` encodes."""
        whole = [Message("user", ""), Message("assistant", PLACEHOLDER), *messages]
        return self._render(whole).partition(PLACEHOLDER)[2]

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a rendered text; texts of control tokens that `_escaped` has marked are characters."""
        valid = text.encode(errors="replace").decode()  # an environment may return lone surrogates
        ids: list[int] = []
        for piece in self._escapes.split(valid):
            if self._escapes.fullmatch(piece):
                ids += self._literals[ord(piece) - FIRST_ESCAPE]
            elif piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return tuple(ids)

    @cached_property
    def _escapes(self) -> re.Pattern[str]:
        """Matches the characters that stand for the texts of control tokens; nothing if there are none."""
        last = FIRST_ESCAPE + len(self.control_tokens) - 1
        return re.compile(f"([{chr(FIRST_ESCAPE)}-{chr(last)}])" if self.control_tokens else "($.)")

    @cached_property
    def _literals(self) -> list[list[int]]:
        """The tokens of each control token's text as ordinary characters."""
        control = {self.tokenizer.convert_tokens_to_ids(token) for token in self.control_tokens}
        literals = []
        for token in self.control_tokens:
            ids = self.tokenizer.encode(token, add_special_tokens=False, split_special_tokens=True)
            if control.intersection(ids):  # a tokenizer of whole words knows it as a word
                ids = self.tokenizer.encode(" ".join(token), add_special_tokens=False, split_special_tokens=True)
            literals.append([id_ for id_ in ids if id_ not in control])
        return literals

    def _escaped(self, value: Any) -> Any:
        """Return a message's or a tool's JSON with each text of a control token replaced by one character."""
        if isinstance(value, str):
            for number, token in enumerate(self.control_tokens):
                value = value.replace(token, chr(FIRST_ESCAPE + number))
            return value
        if isinstance(value, Mapping):
            return {self._escaped(key): self._escaped(item) for key, item in value.items()}
        return [self._escaped(item) for item in value] if isinstance(value, list | tuple) else value

    def response(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a response as if it had been sampled, including the end-of-turn token."""
        follows = self.between([Message("user", "")])[:1]
        ends = follows if follows and follows[0] in self.tokenizer.all_special_ids else (self.tokenizer.eos_token_id,)
        return (*self.encode(text), *ends)

    def response_text(self, message: Message) -> str:
        """Return the text of a response from an assistant message: its tool calls as the template writes them.

        Thoughts are kept as they are, because templates drop those of earlier responses.
        """
        action = message.content.rpartition(CLOSE)[2]
        if CLOSE in message.content:
            action = action.lstrip()
        thoughts = message.content.removesuffix(action)
        written = "\n".join([action] * bool(action) + [_call_text(call) for call in message.tool_calls])
        entry = replace(message, content=action) if self.native_calls else Message("assistant", written)
        user = Message("user", "")
        rendered = self._render([user, entry, user])
        before, _, after = self._render([user, Message("assistant", PLACEHOLDER), user]).partition(PLACEHOLDER)
        fits = len(rendered) >= len(before + after) and rendered.startswith(before) and rendered.endswith(after)
        return thoughts + (rendered[len(before) : len(rendered) - len(after)] if fits else written)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens."""
        return _cached(self._texts, tuple(ids), lambda: str(self.tokenizer.decode(list(ids), skip_special_tokens=True)))

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        try:
            entries = [self._escaped(self._entry(message)) for message in messages]
            schemas = [self._escaped(tool.schema) for tool in tools] if self.native_tools and tools else None
        except RecursionError:
            raise ModelError("a message or a tool is nested too deeply for a chat template") from None
        return render(self.tokenizer, self.template, entries, schemas)

    def _entry(self, message: Message) -> dict[str, Any]:
        role = "user" if message.role == "tool" and not self.tool_role else message.role
        entry: dict[str, Any] = {"role": role, "content": message.content}
        if message.tool_calls:
            entry["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        return entry


def _cached(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """Return the value of a key in a cache of limited size; make it if it is not there."""
    if key not in cache:
        if len(cache) >= CACHE_SIZE:
            cache.clear()
        cache[key] = make()
    return cache[key]


def chat_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """Return the format of a tokenizer; if its template cannot be spliced, warn and return the plain format."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default")
    if template is None:
        return _probe(tokenizer, PLAIN_TEMPLATE)
    try:
        return _probe(tokenizer, str(template))
    except TemplateLimitError:
        raise
    except (ModelError, ValueError) as error:
        warnings.warn(
            f"the chat template of {tokenizer.name_or_path or 'this tokenizer'} cannot be spliced ({error}); "
            "using the plain format, which the model was not trained on",
            stacklevel=2,
        )
        return _probe(tokenizer, PLAIN_TEMPLATE)


def _probe(tokenizer: PreTrainedTokenizerBase, template: str) -> ChatFormat:
    """Return the format of a template; raise if the text between responses depends on the conversation."""
    special = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    control = tuple(sorted(special, key=len, reverse=True))  # a token may be part of a longer one
    plain = ChatFormat(
        tokenizer, template, native_tools=False, native_calls=False, tool_role=False, control_tokens=control
    )
    question = [Message("system", "be brief"), Message("user", "one?")]
    response = Message("assistant", PLACEHOLDER)
    follow_up = Message("user", "two?")
    whole = plain._render([*question, response, follow_up])
    if whole.count(PLACEHOLDER) != 1:
        raise ValueError(f"it renders a response {whole.count(PLACEHOLDER)} times")
    after = whole.partition(PLACEHOLDER)[2]
    longer = plain._render([*question, response, follow_up, response, follow_up])
    if plain.text_between([follow_up]) != after or not longer.endswith(after):
        raise ValueError("the text between two responses depends on the messages before them")
    tools = replace(plain, native_tools=True)
    calls = replace(plain, native_calls=True)
    results = replace(plain, tool_role=True)
    called = Message("assistant", "", (PROBE_CALL,))
    return replace(
        plain,
        native_tools=_contains(lambda: tools._render(question, [PROBE_TOOL]), "probe_key"),
        native_calls=_contains(lambda: calls.response_text(called), "probe_call", "probe_key", "probe_value"),
        tool_role=_contains(lambda: results.text_between([Message("tool", "result-probe")]), "result-probe"),
    )


def _contains(make: Callable[[], str], *probes: str) -> bool:
    """Return whether a text can be rendered and contains all probes."""
    try:
        text = make()
    except TemplateLimitError:
        raise
    except ModelError:
        return False
    return all(probe in text for probe in probes)


def _call_text(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"
