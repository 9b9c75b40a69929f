"""An episode token by token: what was prompt, thought and action, and what is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from rich.console import Console
from rich.text import Text

from seeupo.agents.chat import ChatFormat
from seeupo.agents.reasoning import thought_ranges
from seeupo.types import Trajectory, Turn

Kind = Literal["prompt", "repeated", "thought", "action"]


@dataclass(frozen=True)
class Span:
    """Tokens of one kind in a row. "repeated" ones stand at the beginning of the turn before's turn, too."""

    kind: Kind
    tokens: tuple[str, ...]

    @property
    def trained(self) -> bool:
        return self.kind in ("thought", "action")


def spans(trajectory: Trajectory, chat: ChatFormat) -> Iterator[list[Span]]:
    """Per turn, the sample's tokens as text, in order."""
    before: tuple[int, ...] = ()
    for turn in trajectory.turns:
        same = next((n for n, (a, b) in enumerate(zip(before, turn.prompt_ids, strict=False)) if a != b), None)
        repeated = min(len(before), len(turn.prompt_ids)) if same is None else same
        parts = [
            Span("repeated", _texts(chat, turn.prompt_ids[:repeated])),
            Span("prompt", _texts(chat, turn.prompt_ids[repeated:])),
            *_response(turn, chat),
        ]
        yield [part for part in parts if part.tokens]
        before = turn.prompt_ids + turn.action_ids


def _response(turn: Turn, chat: ChatFormat) -> Iterator[Span]:
    """The sampled tokens; one that is partly thought counts as thought."""
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
        yield Span(kind, _texts(chat, ids[first : first + count]))
        first += count


def _texts(chat: ChatFormat, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(chat.tokenizer.decode([token])) for token in ids)


SPAN_STYLES = {"repeated": "dim", "prompt": "default", "thought": "italic cyan", "action": "bold green"}


def show(trajectory: Trajectory, chat: ChatFormat, console: Console) -> None:
    """Print an episode's tokens, turn by turn: what was prompt, thought and action."""
    legend = Text("tokens are separated by ·  ")
    for kind, style in SPAN_STYLES.items():
        legend.append(f"{kind}{' (trained on)' if kind in ('thought', 'action') else ''}", style).append("  ")
    console.print(legend)
    for note in chat.notes:
        console.print(f"The chat template differs from what is shown: {note}.", style="yellow")
    for turn, parts in enumerate(spans(trajectory, chat)):
        console.rule(f"turn {turn + 1}", align="left")
        for part in parts:
            if part.kind == "repeated":
                console.print(f"[{len(part.tokens)} tokens as before]", style="dim", markup=False)
            else:
                console.print(Text("·".join(part.tokens), SPAN_STYLES[part.kind]))
    console.rule()
    console.print(f"stopped by: {trajectory.stop.value}; score {trajectory.reward:g}")
