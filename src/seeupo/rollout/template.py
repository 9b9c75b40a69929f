"""ReAct templates: build the token ids of each turn's prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from seeupo.rollout.reasoning import without_thoughts
from seeupo.types import Message, StepResult, Tool
from seeupo.utils.option_checks import check_count

if TYPE_CHECKING:
    from seeupo.rollout.chat import ChatFormat

REMINDER = "Think briefly between <think> and </think>, then act."


@dataclass(frozen=True, kw_only=True)
class Template:
    """Prompt settings.

    Attributes:
        reasoning: Whether to use the paper's Reasoning-Augmented Template: a short thought before each action, earlier
            thoughts removed from later prompts, and a reminder at the end of the last message. The plain template
            keeps all responses unchanged.
        max_observation_tokens: Maximum length of an observation; longer ones are truncated with a note.
        max_prompt_tokens: Maximum length of a prompt; the oldest observations of longer ones are replaced by a note.
            None for no limit except the model's context.
    """

    reasoning: bool = True
    max_observation_tokens: int = 3000
    max_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        check_count("max_observation_tokens", self.max_observation_tokens, 1)
        if self.max_prompt_tokens is not None:
            check_count("max_prompt_tokens", self.max_prompt_tokens, 1)


@dataclass
class Exchange:
    """A sampled response, and the environment's messages after it."""

    ids: tuple[int, ...]
    messages: tuple[Message, ...]


@dataclass
class Conversation:
    """The conversation of an episode, from which prompts are built; sampled ids are never changed."""

    chat: ChatFormat
    template: Template
    first: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: list[Exchange] = field(default_factory=list)
    _pieces: dict[tuple[int, bool, bool], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def start(cls, chat: ChatFormat, template: Template, result: StepResult) -> Conversation:
        return cls(chat, template, result.messages, result.tools or ())

    def add(self, ids: Sequence[int], result: StepResult) -> None:
        """Add a sampled response, with its end-of-turn token if it has one, and the environment's result."""
        self.turns.append(Exchange(tuple(ids), result.messages))
        if result.tools is not None:
            self.tools = result.tools

    def prompt_ids(self) -> tuple[int, ...]:
        """Return the prompt of the next response."""
        limit = self.template.max_prompt_tokens
        ids = self._assemble(())
        for cut in range(1, len(self.turns)):
            if limit is None or len(ids) <= limit:
                break
            ids = self._assemble(range(cut))
        return ids

    def _assemble(self, cut_turns: Sequence[int]) -> tuple[int, ...]:
        last = len(self.turns) - 1
        first = self.first if self.chat.native_tools else with_tools(self.first, self.tools)
        ids = list(self.chat.opening(self._prepare(first, reminded=last < 0), self.tools))
        for number in range(len(self.turns)):
            ids += self._piece(number, reminded=number == last, cut=number in cut_turns)
        return tuple(ids)

    def _piece(self, number: int, *, reminded: bool, cut: bool) -> tuple[int, ...]:
        """Return a turn's response and the tokens between it and the next."""
        key = (number, reminded, cut)
        if key not in self._pieces:
            turn = self.turns[number]
            messages = self._prepare(turn.messages, reminded=reminded)
            if cut:
                messages = [
                    replace(message, content=_cut_note(len(self.chat.encode(message.content)))) for message in messages
                ]
            self._pieces[key] = self.chat.spliced(self._visible_response(turn), messages)
        return self._pieces[key]

    def _visible_response(self, turn: Exchange) -> tuple[int, ...]:
        """Return a response as later prompts show it: with the reasoning template, without its thoughts."""
        if not self.template.reasoning:
            return turn.ids
        rest, ids = without_thoughts(turn.ids, self.chat.tokenizer.decode)  # type: ignore[arg-type]
        rest = rest.lstrip()
        return (*(self.chat.encode(rest) if rest else ()), *ids)

    def _prepare(self, messages: Sequence[Message], *, reminded: bool) -> list[Message]:
        """Truncate long messages, and add the reminder to the last one."""
        prepared = [
            message if message.role == "system" else replace(message, content=self._truncate(message.content))
            for message in messages
        ]
        if reminded and self.template.reasoning and prepared:
            prepared[-1] = replace(prepared[-1], content=f"{prepared[-1].content}\n{REMINDER}")
        return prepared

    def _truncate(self, text: str) -> str:
        limit = self.template.max_observation_tokens
        if len(text.encode(errors="surrogatepass")) <= limit:  # a token is at least one byte
            return text
        ids = self.chat.encode(text)
        if len(ids) <= limit:
            return text
        return f"{self.chat.tokenizer.decode(list(ids[:limit]))}\n{_cut_note(len(ids) - limit)}"


def with_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
    """Return the messages with a description of the tools in the system message, for templates without tool support."""
    if not tools:
        return messages
    text = "These tools can be called:\n" + "\n".join(json.dumps(tool.schema["function"]) for tool in tools)
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)


def _cut_note(tokens: int) -> str:
    return f"[... {tokens} tokens cut]"
