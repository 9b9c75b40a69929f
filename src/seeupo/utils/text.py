"""Text for people: counts with their nouns, and text from models, servers, environments, files and paths made visible.

A terminal acts on control characters, and some characters are invisible or reorder the text around them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

ZERO_WIDTH_JOINER, EMOJI_STYLE, KEYCAP = "\u200d", "\ufe0f", "\u20e3"
BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Marks and letters without a glyph; `str.isprintable` accepts them."""
LONGEST_OBSERVATION = 20_000
"""Number of characters of an observation after which environments cut it."""


def visible(text: str, *, layout: str = "\n\t") -> str:
    r"""Return the text with control and invisible characters as escapes such as \x1b, except those in `layout`."""

    def show(match: re.Match[str]) -> str:
        return match[0] if match[0] in layout or _has_glyph(match) else match[0].encode("unicode_escape").decode()

    return re.sub(r"[^ -~]", show, text)


def one_line(text: object) -> str:
    """Return a value as visible text without line breaks and tabs."""
    return visible(str(text), layout="")


def indented(text: str) -> str:
    """Return visible text whose further lines are indented, so that they cannot pose as lines of this program."""
    return "\n  ".join(map(one_line, text.split("\n")))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 iteration", "2 iterations"."""
    return f"{count} {noun if count == 1 else noun + 's'}"


def listed(noun: str, numbers: Sequence[int], limit: int = 3) -> str:
    """Return a noun with the first few of many numbers: "iterations 1, 2, 3 and 7 more"."""
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:limit]))}{more}"


def _has_glyph(match: re.Match[str]) -> bool:
    """Return whether a character is a space, has a glyph or is part of an emoji."""
    letter, text = match[0], match.string
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    if letter == EMOJI_STYLE:
        return after == KEYCAP or _is_symbol(before)
    if letter == ZERO_WIDTH_JOINER:
        return (before == EMOJI_STYLE or _is_symbol(before)) and _is_symbol(after)
    return (letter.isprintable() or unicodedata.category(letter) == "Zs") and BLANK.fullmatch(letter) is None


def _is_symbol(letter: str) -> bool:
    return letter != "" and unicodedata.category(letter) in ("So", "Sm", "Sk")


def cut(text: str, limit: int = LONGEST_OBSERVATION) -> str:
    """Return the text, or its first `limit` characters and a note of how many were cut."""
    beyond = len(text) - limit
    return text if beyond <= 0 else f"{text[:limit]}[... {beyond} characters cut]"
