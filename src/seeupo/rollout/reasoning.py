"""Separate the thoughts of a response from its action."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

OPEN, CLOSE = "<think>", "</think>"
_TAG = re.compile(f"{OPEN}|{CLOSE}")


def thought_ranges(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each thought of a response, including its tags.

    An unclosed thought extends to the end. An unopened one starts with the response, because some templates open it in
    the prompt.
    """
    ranges: list[tuple[int, int]] = []
    opened: int | None = None
    for tag in _TAG.finditer(text):
        if tag.group() == OPEN:
            opened = tag.start() if opened is None else opened
        elif opened is not None:
            ranges.append((opened, tag.end()))
            opened = None
        else:
            ranges = [(0, tag.end())]
    return ranges if opened is None else [*ranges, (opened, len(text))]


def action_of(text: str) -> str:
    """Return the response without its thoughts; only this part is sent to the environment."""
    kept, position = [], 0
    for start, end in thought_ranges(text):
        kept.append(text[position:start])
        position = end
    return "".join([*kept, text[position:]]).strip()


def without_thoughts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, tuple[int, ...]]:
    """Return a response as later prompts show it: a text, followed by the ids sampled after the last thought.

    The text is the part that shares a token with the end of that thought. A response that ends within a thought is
    returned as text only.
    """
    ends = decode(ids).count(CLOSE)
    first = bisect_left(range(len(ids) + 1), ends, key=lambda count: decode(ids[:count]).count(CLOSE))
    rest = decode(ids[:first]).rpartition(CLOSE)[2] if ends else ""
    if OPEN in rest + decode(ids[first:]):
        return (rest + decode(ids[first:])).partition(OPEN)[0], ()
    return rest, tuple(ids[first:])
