"""Bound the length of observations."""

from __future__ import annotations

LONGEST_OBSERVATION = 20_000


def cut(text: str, limit: int = LONGEST_OBSERVATION) -> str:
    """Return the text, or its first `limit` characters and a note of how many were cut."""
    beyond = len(text) - limit
    return text if beyond <= 0 else f"{text[:limit]}[... {beyond} characters cut]"
