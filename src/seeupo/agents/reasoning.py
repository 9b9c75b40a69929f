"""What of a response is thought and what is action."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

OPEN, CLOSE = "<think>", "</think>"
_MARK = re.compile(f"{OPEN}|{CLOSE}")


def thought_ranges(text: str) -> list[tuple[int, int]]:
    """Where the thoughts of a response begin and end, marks included.

    A thought that was never closed goes to the end; one that was never opened began with the response, as it does where
    the template has opened it.
    """
    ranges: list[tuple[int, int]] = []
    opened: int | None = None
    for mark in _MARK.finditer(text):
        if mark.group() == OPEN:
            opened = mark.start() if opened is None else opened
        elif opened is not None:
            ranges.append((opened, mark.end()))
            opened = None
        else:
            ranges = [(0, mark.end())]
    return ranges if opened is None else [*ranges, (opened, len(text))]


def action_of(text: str) -> str:
    """The response without its thoughts: all that may act."""
    kept, place = "", 0
    for start, end in thought_ranges(text):
        kept, place = kept + text[place:start], end
    return (kept + text[place:]).strip()


def without_thoughts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, tuple[int, ...]]:
    """A response as later prompts show it: some text, and behind it the ids that were sampled after the last thought.

    The text is what shares a token with the end of that thought. A response that ends within a thought is all text.
    """
    ends = decode(ids).count(CLOSE)
    first = bisect_left(range(len(ids) + 1), ends, key=lambda count: decode(ids[:count]).count(CLOSE))
    rest = decode(ids[:first]).rpartition(CLOSE)[2] if ends else ""
    if OPEN in rest + decode(ids[first:]):
        return (rest + decode(ids[first:])).partition(OPEN)[0], ()
    return rest, tuple(ids[first:])
