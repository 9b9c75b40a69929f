"""Read files of demonstrations as the turns that a policy would have seen and sampled."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seeupo.errors import DemonstrationFileError, ModelError, first_line
from seeupo.models.tokenizer_check import WORDS_REMEDY, loss_of_text, unknown_ids
from seeupo.rollout.chat import ChatFormat
from seeupo.rollout.template import Conversation, Template
from seeupo.runs.demonstration_files import ChatDemonstration, read_chat_file
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import Message, StepResult, Trajectory, Turn

Demonstration = tuple[Turn, ...]
"""The turns of one episode, with the prompts that a policy would have seen."""
MAX_TOKENS = 10**9
"""Tokens of a file's demonstrations, in all prompts and responses; they take 4 GB."""


class PackedDemonstrations(Sequence[Demonstration]):
    """Demonstrations of a file in four bytes per token; as tuples they take up to forty.

    Of turns from a trajectory file, only what supervised learning needs is kept.
    """

    def __init__(self) -> None:
        self._tokens = array("I")
        self._turns: list[tuple[str, int, int, int, int]] = []
        self._ends = array("Q", [0])

    def append(self, demonstration: Demonstration) -> None:
        for turn in demonstration:
            start = len(self._tokens)
            self._tokens.extend(turn.prompt_ids)
            middle = len(self._tokens)
            self._tokens.extend(turn.action_ids)
            self._turns.append((turn.trajectory, turn.index, start, middle, len(self._tokens)))
        self._ends.append(len(self._turns))
        if len(self._tokens) > MAX_TOKENS:
            raise DemonstrationFileError(
                f"the first {len(self)} demonstrations have more than {MAX_TOKENS / 1e6:g} million tokens in prompts "
                "and responses; expected what fits into memory. Use fewer"
            )

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        return tuple(
            Turn(name, index, tuple(self._tokens[start:middle]), tuple(self._tokens[middle:end]))
            for name, index, start, middle, end in self._turns[self._ends[number] : self._ends[number + 1]]
        )


def read_trajectory_demonstrations(
    path: Path, *, vocab_size: float = math.inf, context: float = math.inf
) -> Iterator[Trajectory]:
    """Yield the trajectories of a file, in its tokens; raise for the first that does not fit the model."""
    for line, trajectory in enumerate(read_trajectories(path.resolve()), 2):
        for turn in trajectory.turns:
            tokens = turn.prompt_ids + turn.action_ids
            if max(tokens, default=0) >= vocab_size:
                raise DemonstrationFileError(
                    f"{path}, line {line}: it contains token {max(tokens)}; the model's vocabulary has {vocab_size}. "
                    "It was written with another tokenizer: use a file of this model"
                )
            if len(tokens) > context:
                raise DemonstrationFileError(
                    f"{path}, line {line}: a turn has {len(tokens)} tokens; the model's context is {context}. "
                    "Use a model with a longer context"
                )
        yield trajectory


def read_chat_demonstrations(
    path: Path, chat: ChatFormat, template: Template, *, context: float
) -> Iterator[tuple[ChatDemonstration, Demonstration]]:
    """Yield the conversations of a file with their turns; raise for the first that does not fit the model."""
    for _ in read_chat_file(path):  # the form of all lines comes first: the model is no problem of a malformed file
        pass
    unknown = unknown_ids(chat.tokenizer)
    for conversation in read_chat_file(path):
        try:
            turns = chat_turns(conversation, chat, template, context=context)
            if any(not unknown.isdisjoint(turn.prompt_ids + turn.action_ids) for turn in turns):
                raise ValueError(f"the tokenizer does not know all of its words; {WORDS_REMEDY}")
            for text in map(chat.response_text, conversation.messages):
                if (loss := loss_of_text(chat.tokenizer, text)) is not None:
                    raise ValueError(loss)
        except ModelError as error:
            raise DemonstrationFileError(f"{path}, line {conversation.line}: {first_line(error)}") from None
        except ValueError as error:
            raise DemonstrationFileError(f"{path}, line {conversation.line}: {error}") from None
        yield conversation, turns


def chat_turns(
    demonstration: ChatDemonstration, chat: ChatFormat, template: Template, *, context: float
) -> Demonstration:
    """Return one turn per assistant message that is trained on.

    Prompts are built as in an episode: the messages before an assistant message are the environment's, and earlier
    assistant messages are responses whose tokens stay the same.
    """
    turns: list[Turn] = []
    conversation: Conversation | None = None
    pending: list[Message] = []
    response: tuple[int, ...] = ()
    responses = 0
    for position, message in enumerate(demonstration.messages):
        if message.role != "assistant":
            pending.append(message)
            continue
        if conversation is None:
            conversation = Conversation.start(chat, template, StepResult(tuple(pending), tools=demonstration.tools))
        else:
            conversation.add(response, StepResult(tuple(pending)))
        pending.clear()
        prompt, response = conversation.prompt_ids(), chat.response(chat.response_text(message))
        if len(prompt) + len(response) > context:
            raise ValueError(
                f"it has {len(prompt) + len(response)} tokens up to message {position + 1}; the model's context is "
                f"{context}. Shorten or remove the line, or use a model with a longer context"
            )
        if position in demonstration.trained:
            turns.append(Turn(f"line {demonstration.line}", responses, prompt, response))
        responses += 1
    return tuple(turns)
