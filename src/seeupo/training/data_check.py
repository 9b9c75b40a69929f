"""Check a file of demonstrations as a warm start would read it, and count what is in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seeupo.evaluation.evaluate import model_of, run_settings
from seeupo.models.loading import load_tokenizer
from seeupo.rollout.chat import chat_format
from seeupo.rollout.reasoning import thought_ranges
from seeupo.rollout.template import Template
from seeupo.runs.demonstration_files import ChatDemonstration, DataFormat, data_format, read_chat_file
from seeupo.training.demonstrations import read_chat_demonstrations, read_trajectory_demonstrations
from seeupo.types import Trajectory, Turn


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

    def add_trajectory(self, trajectory: Trajectory) -> None:
        if trajectory.failure is not None:
            self.failed += 1
            return
        self.rewards.append(trajectory.reward)
        self.turns.append(len(trajectory.turns))
        self.add_tokens(trajectory.turns)

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
    tokenizer, context = (None, math.inf) if model is None else load_tokenizer(model_of(model))
    if summary.format == "trajectories":
        vocab_size = math.inf if tokenizer is None else len(tokenizer)
        for trajectory in read_trajectory_demonstrations(path, vocab_size=vocab_size, context=context):
            summary.add_trajectory(trajectory)
    elif model is None or tokenizer is None:
        for demonstration in read_chat_file(path):
            summary.add_chat(demonstration)
    else:
        template = Template(reasoning=not (run_settings(model).get("plain", False) if plain is None else plain))
        for demonstration, turns in read_chat_demonstrations(path, chat_format(tokenizer), template, context=context):
            summary.add_chat(demonstration)
            summary.add_tokens(turns)
    return summary
