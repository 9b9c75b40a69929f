"""React templates: what a policy is shown at each turn, in tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from seeupo.agents.chat import ChatFormat
from seeupo.agents.reasoning import without_thoughts
from seeupo.core.checks import check_count
from seeupo.types import Message, StepResult, Tool

REMINDER = "Think briefly between <think> and </think>, then act."


@dataclass(frozen=True, kw_only=True)
class Template:
    """How a conversation is shown.

    Attributes:
        reasoning: the paper's Reasoning-Augmented Template: a short thought before each action, thoughts of earlier
            turns left out of later prompts, and a reminder at the end of the last message. Without it the plain one:
            everything that was said stays.
        reminder: that line.
        max_observation_tokens: longer messages of the environment are cut, with a mark.
        max_prompt_tokens: when a prompt is longer, its oldest observations are cut, with a mark; None for no limit but
            the model's own.
    """

    reasoning: bool = True
    reminder: str = REMINDER
    max_observation_tokens: int = 3000
    max_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        check_count("max_observation_tokens", self.max_observation_tokens, 1)
        if self.max_prompt_tokens is not None:
            check_count("max_prompt_tokens", self.max_prompt_tokens, 1)


@dataclass
class Exchange:
    """A response, in the ids that were sampled, and what the environment answered."""

    ids: tuple[int, ...]
    messages: tuple[Message, ...]


@dataclass
class Conversation:
    """An episode as a policy sees it: its prompt grows, and what was sampled stays as it was."""

    chat: ChatFormat
    template: Template
    first: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: list[Exchange] = field(default_factory=list)
    _pieces: dict[tuple[int, bool, bool], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def begin(cls, chat: ChatFormat, template: Template, result: StepResult) -> Conversation:
        return cls(chat, template, result.messages, result.tools or ())

    def add(self, ids: Sequence[int], result: StepResult) -> None:
        """A sampled response, end-of-turn token included if there was one, and what followed it."""
        self.turns.append(Exchange(tuple(ids), result.messages))
        if result.tools is not None:
            self.tools = result.tools

    def prompt_ids(self) -> tuple[int, ...]:
        """What the next response is sampled behind."""
        limit = self.template.max_prompt_tokens
        ids = self._assemble(())
        for cut in range(1, len(self.turns)):
            if limit is None or len(ids) <= limit:
                break
            ids = self._assemble(range(cut))
        return ids

    def _assemble(self, cut_turns: Sequence[int]) -> tuple[int, ...]:
        last = len(self.turns) - 1
        ids = list(self.chat.opening(self._shown(self._first_messages(), reminded=last < 0), self.tools))
        for number in range(len(self.turns)):
            ids += self._piece(number, reminded=number == last, cut=number in cut_turns)
        return tuple(ids)

    def _piece(self, number: int, *, reminded: bool, cut: bool) -> tuple[int, ...]:
        """A turn's response and what stands between it and the next."""
        key = (number, reminded, cut)
        if key not in self._pieces:
            turn = self.turns[number]
            messages = self._shown(turn.messages, reminded=reminded)
            if cut:
                messages = [replace(message, content=_mark(self._count(message))) for message in messages]
            said, follows = self._said(turn), self.chat.between(messages)
            # Whoever ended the turn has written its last token already.
            self._pieces[key] = said + (follows[1:] if said and follows[:1] == said[-1:] else follows)
        return self._pieces[key]

    def _said(self, turn: Exchange) -> tuple[int, ...]:
        if not self.template.reasoning:
            return turn.ids
        rest, ids = without_thoughts(turn.ids, self.chat.tokenizer.decode)  # type: ignore[arg-type]
        rest = rest.lstrip()
        return (*(self.chat.encode(rest) if rest else ()), *ids)

    def _first_messages(self) -> Sequence[Message]:
        return self.first if self.chat.native_tools else with_tools(self.first, self.tools)

    def _shown(self, messages: Sequence[Message], *, reminded: bool) -> list[Message]:
        shown = [
            message if message.role == "system" else replace(message, content=self._cut(message.content))
            for message in messages
        ]
        if reminded and self.template.reasoning and shown:
            shown[-1] = replace(shown[-1], content=f"{shown[-1].content}\n{self.template.reminder}")
        return shown

    def _cut(self, text: str) -> str:
        limit = self.template.max_observation_tokens
        if len(text.encode(errors="surrogatepass")) <= limit:  # a token is at least one byte
            return text
        ids = self.chat.encode(text)
        if len(ids) <= limit:
            return text
        return f"{self.chat.tokenizer.decode(list(ids[:limit]))}\n{_mark(len(ids) - limit)}"

    def _count(self, message: Message) -> int:
        return len(self.chat.encode(message.content))


def with_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
    """The messages with the tools described in the system's, for whoever cannot show them otherwise."""
    if not tools:
        return messages
    text = "These tools can be called:\n" + "\n".join(json.dumps(_plain(tool)) for tool in tools)
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)


def _mark(tokens: int) -> str:
    return f"[... {tokens} tokens cut]"


def _plain(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
