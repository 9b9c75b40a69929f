"""Print an episode token by token: prompt, thought and action, and which tokens are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from rich.console import Console
from rich.text import Text

from seeupo.rollout.chat import ChatFormat
from seeupo.rollout.reasoning import thought_ranges
from seeupo.types import Trajectory, Turn
from seeupo.utils.sequences import common_prefix_length
from seeupo.utils.text import visible

Kind = Literal["prompt", "repeated", "thought", "action"]
STYLES: dict[Kind, str] = {"repeated": "dim", "prompt": "default", "thought": "italic cyan", "action": "bold green"}
TRAINED: tuple[Kind, ...] = ("thought", "action")


@dataclass(frozen=True)
class TokenSegment:
    """Consecutive tokens of one kind, as text. Kind "repeated" is the prefix shared with the turn before."""

    kind: Kind
    tokens: tuple[str, ...]

    @property
    def trained(self) -> bool:
        return self.kind in TRAINED


def token_segments(trajectory: Trajectory, chat: ChatFormat) -> Iterator[list[TokenSegment]]:
    """Yield the tokens of each turn as segments, in order."""
    before: tuple[int, ...] = ()
    for turn in trajectory.turns:
        repeated = common_prefix_length(before, turn.prompt_ids)
        segments = [
            TokenSegment("repeated", _texts(chat, turn.prompt_ids[:repeated])),
            TokenSegment("prompt", _texts(chat, turn.prompt_ids[repeated:])),
            *_response_segments(turn, chat),
        ]
        yield [segment for segment in segments if segment.tokens]
        before = turn.prompt_ids + turn.action_ids


def _response_segments(turn: Turn, chat: ChatFormat) -> Iterator[TokenSegment]:
    """Yield the sampled tokens; a token that is partly thought counts as thought."""
    ids = turn.action_ids
    thoughts = thought_ranges(chat.decode(ids))
    ends = [len(chat.decode(ids[:count])) for count in range(len(ids) + 1)]
    kinds: list[Kind] = [
        "thought" if any(low < end and start < high for low, high in thoughts) else "action"
        for start, end in pairwise(ends)
    ]
    first = 0
    for kind, members in groupby(kinds):
        count = len(list(members))
        yield TokenSegment(kind, _texts(chat, ids[first : first + count]))
        first += count


def _texts(chat: ChatFormat, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(chat.tokenizer.decode([token])) for token in ids)


def print_tokens(trajectory: Trajectory, chat: ChatFormat, console: Console) -> None:
    """Print the tokens of an episode, turn by turn."""
    legend = Text("tokens are separated by ·  ")
    for kind, style in STYLES.items():
        legend.append(f"{kind}{' (trained on)' if kind in TRAINED else ''}", style).append("  ")
    console.print(legend)
    for number, segments in enumerate(token_segments(trajectory, chat), 1):
        console.rule(f"turn {number}", align="left")
        for segment in segments:
            if segment.kind == "repeated":
                console.print(f"[{len(segment.tokens)} tokens as before]", style="dim")
            else:
                console.print(Text(visible("·".join(segment.tokens)), STYLES[segment.kind]))
    console.rule()
    if trajectory.failure is not None:
        console.print(Text(visible(f"failed, no score: {trajectory.failure.message}")))
    else:
        console.print(f"stopped by: {trajectory.stop.value}; score {trajectory.score:g}")
