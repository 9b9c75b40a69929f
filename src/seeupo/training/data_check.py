"""Check a file of demonstrations as a warm start would read it, and count what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seeupo.errors import DemonstrationFileError
from seeupo.evaluation.evaluate import model_of, run_settings
from seeupo.models.loading import load_tokenizer
from seeupo.rollout.chat import chat_format
from seeupo.rollout.reasoning import thought_ranges
from seeupo.rollout.template import Template
from seeupo.runs.demonstration_files import ChatDemonstration, DataFormat, data_format, read_chat_file
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.chat_demonstrations import read_chat_demonstrations
from seeupo.types import Turn


@dataclass
class DataSummary:
    """What is in a file of demonstrations.

    Attributes:
        roles: Number of messages by role; empty for trajectories.
        turns: Number of turns that are trained on, one entry per demonstration.
        thoughts, calls: Number of trained assistant messages with a thought, and of their tool calls.
        rewards: Rewards of the trajectories; empty for other formats.
        failed: Number of trajectories with an infrastructure failure, which are not used.
        longest_prompt, longest_response: Maximum lengths in tokens; 0 if nothing was tokenized.
        trained_tokens: Number of tokens that are trained on in one pass.
    """

    format: DataFormat
    roles: Counter[str] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    thoughts: int = 0
    calls: int = 0
    rewards: list[float] = field(default_factory=list)
    failed: int = 0
    longest_prompt: int = 0
    longest_response: int = 0
    trained_tokens: int = 0

    def add_chat(self, demonstration: ChatDemonstration) -> None:
        self.roles.update(message.role for message in demonstration.messages)
        self.turns.append(len(demonstration.trained))
        for position in demonstration.trained:
            message = demonstration.messages[position]
            self.thoughts += bool(thought_ranges(message.content))
            self.calls += len(message.tool_calls)

    def add_tokens(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.longest_prompt = max(self.longest_prompt, len(turn.prompt_ids))
            self.longest_response = max(self.longest_response, len(turn.action_ids))
            self.trained_tokens += len(turn.action_ids)


def check_data(path: Path, *, model: str | None = None, plain: bool | None = None) -> DataSummary:
    """Read a whole file and return what is in it; raise for the first problem.

    Args:
        model: Model or run directory whose tokenizer and context the file must fit; None checks the form only.
        plain: Whether prompts use the plain template; by default as in the run, or not if `model` is not a run.
    """
    summary = DataSummary(data_format(path))
    if summary.format == "trajectories":
        _add_trajectories(summary, path, model)
    elif model is None:
        for demonstration in read_chat_file(path):
            summary.add_chat(demonstration)
    else:
        tokenizer, context = load_tokenizer(model_of(model))
        template = Template(reasoning=not (run_settings(model).get("plain", False) if plain is None else plain))
        read = read_chat_demonstrations(path, chat_format(tokenizer), template, context=context)
        for demonstration, turns in read:
            summary.add_chat(demonstration)
            summary.add_tokens(turns)
    return summary


def _add_trajectories(summary: DataSummary, path: Path, model: str | None) -> None:
    tokenizer, context = load_tokenizer(model_of(model)) if model is not None else (None, None)
    for line, trajectory in enumerate(read_trajectories(path), 2):
        if trajectory.failure is not None:
            summary.failed += 1
            continue
        summary.rewards.append(trajectory.reward)
        summary.turns.append(len(trajectory.turns))
        summary.add_tokens(trajectory.turns)
        for turn in trajectory.turns:
            length = len(turn.prompt_ids) + len(turn.action_ids)
            highest = max((*turn.prompt_ids, *turn.action_ids), default=0)
            if tokenizer is not None and highest >= len(tokenizer):
                raise DemonstrationFileError(
                    f"{path}, line {line}: it contains token {highest}; the tokenizer of {model} has {len(tokenizer)}. "
                    "Use a file that was written with this tokenizer"
                )
            if context is not None and length > context:
                raise DemonstrationFileError(
                    f"{path}, line {line}: a turn has {length} tokens; the context of {model} is {context}. "
                    "Use a model with a longer context"
                )
