"""What a policy is shown is never unbounded."""

from __future__ import annotations

LONGEST_OBSERVATION = 20_000


def cut(text: str, limit: int = LONGEST_OBSERVATION) -> str:
    """The text, or its first `limit` characters and a mark that says how many are missing."""
    beyond = len(text) - limit
    return text if beyond <= 0 else f"{text[:limit]}[... {beyond} characters cut]"
