"""How messages become tokens, so that what was sampled can stand between them untouched.

A chat template is asked for the two pieces of text that never change: what stands before the first response, and what
stands between a response and the next. Sampled ids are put between these pieces; they are never rendered again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from seeupo.types import Message, Tool

MARK = "\u241e"
"""Stands for a response while a template is asked what comes behind it."""
REMEMBERED = 4096
"""How many pieces of text are kept as ids."""
PROBE_TOOL = Tool("probe_tool", "A probe.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""For tokenizers that bring none: the role, a colon, the content, and the end-of-turn token."""


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer's way to write a conversation, found out by asking its template.

    Attributes:
        template: Jinja text.
        native_tools: the template shows tool schemas itself.
        tool_role: the template knows messages of tools; otherwise these are shown as the user's.
        notes: where spliced prompts differ from what the template would make of the whole conversation.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str
    native_tools: bool
    tool_role: bool
    notes: tuple[str, ...]
    _pieces: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Everything before the first response."""
        return self._written(messages, tools, lambda: self._render(messages, tools, generation=True))

    def between(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """From the end of a response to the beginning of the next, with these messages in the middle."""
        spoken = [Message("user", ""), Message("assistant", MARK), *messages]
        return self._written(messages, None, lambda: self._render(spoken, (), generation=True).partition(MARK)[2])

    def _written(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, text: Callable[[], str]
    ) -> tuple[int, ...]:
        """The ids of a text, which many episodes need again: templates and tokenizers take their time."""
        key = repr((messages, tools))
        if key not in self._pieces:
            if len(self._pieces) >= REMEMBERED:
                self._pieces.clear()
            self._pieces[key] = self.encode(text())
        return self._pieces[key]

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def response(self, text: str) -> tuple[int, ...]:
        """A response as it would have been sampled: its tokens and the one that ends a turn."""
        follows = self.between([Message("user", "")])[:1]
        ends = follows if follows and follows[0] in self.tokenizer.all_special_ids else (self.tokenizer.eos_token_id,)
        return (*self.encode(text), *ends)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without the tokens that end a turn."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [self._entry(message) for message in messages],
                tools=[schema_of(tool) for tool in tools] if self.native_tools and tools else None,
                chat_template=self.template,
                add_generation_prompt=generation,
                tokenize=False,
            )
        )

    def _entry(self, message: Message) -> dict[str, Any]:
        role = "user" if message.role == "tool" and not self.tool_role else message.role
        entry: dict[str, Any] = {"role": role, "content": message.content}
        if message.tool_calls:
            entry["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        return entry


def chat_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """The tokenizer's own format, or the plain one with a warning where its template cannot be spliced."""
    own = tokenizer.chat_template
    if isinstance(own, Mapping):
        own = own.get("default")
    if own is None:
        return _probe(tokenizer, PLAIN_TEMPLATE)
    try:
        found = _probe(tokenizer, str(own))
    except (TemplateError, ValueError) as error:
        warnings.warn(
            f"the chat template of {tokenizer.name_or_path or 'this tokenizer'} cannot be spliced ({error}); "
            "the plain format is used, which the model was not trained on",
            stacklevel=2,
        )
        return _probe(tokenizer, PLAIN_TEMPLATE)
    return found


def _probe(tokenizer: PreTrainedTokenizerBase, template: str) -> ChatFormat:
    """Find out what a template can do; raises if its pieces depend on more than themselves."""
    plain = ChatFormat(tokenizer, template, native_tools=False, tool_role=False, notes=())
    asked = [Message("system", "be brief"), Message("user", "one?")]
    answered = [*asked, Message("assistant", MARK)]
    follow_up = Message("user", "two?")
    opening = plain._render(asked, (), generation=True)
    whole = plain._render([*answered, follow_up], (), generation=True)
    if whole.count(MARK) != 1:
        raise ValueError(f"it shows a response {whole.count(MARK)} times")
    before, _, behind = whole.partition(MARK)
    alone = plain._render([Message("user", ""), Message("assistant", MARK), follow_up], (), generation=True)
    longer = plain._render([*answered, follow_up, Message("assistant", MARK), follow_up], (), generation=True)
    if alone.partition(MARK)[2] != behind or not longer.endswith(behind):
        raise ValueError("what stands between two responses depends on what stands before them")
    notes = []
    if before != opening:
        notes.append("it writes an earlier response with another beginning than the one it was sampled behind")
    return ChatFormat(
        tokenizer,
        template,
        native_tools=_shows_tools(plain, asked),
        tool_role=_knows_tool_messages(plain),
        notes=tuple(notes),
    )


def _shows_tools(plain: ChatFormat, asked: Sequence[Message]) -> bool:
    native = ChatFormat(plain.tokenizer, plain.template, native_tools=True, tool_role=False, notes=())
    try:
        return "probe_key" in native._render(asked, [PROBE_TOOL], generation=True)
    except TemplateError:
        return False


def _knows_tool_messages(plain: ChatFormat) -> bool:
    native = ChatFormat(plain.tokenizer, plain.template, native_tools=False, tool_role=True, notes=())
    messages = [Message("user", "one?"), Message("assistant", MARK), Message("tool", "result-probe")]
    try:
        return "result-probe" in native._render(messages, (), generation=True).partition(MARK)[2]
    except TemplateError:
        return False


def schema_of(tool: Tool) -> dict[str, Any]:
    """A tool as the chat templates of Hugging Face and OpenAI take it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
