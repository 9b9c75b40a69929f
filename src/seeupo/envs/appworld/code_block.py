"""Extract the code from an action."""

from __future__ import annotations

import re

FENCE = re.compile(r"^[ \t]*```([^`\n]*)$", re.MULTILINE)
LANGUAGES = ("python", "py", "")


def first_code_block(text: str) -> str | None:
    """Return the first fenced block that is marked `python`, `py` or nothing; None if there is none.

    An unclosed block extends to the end, because a stop string may have removed the closing fence. Later blocks are
    ignored, as in AppWorld's own agents: the model has not seen the first one's output yet.
    """
    position = 0
    while opening := FENCE.search(text, position):
        closing = FENCE.search(text, opening.end())
        if opening[1].strip().lower() in LANGUAGES:
            return text[opening.end() : closing.start() if closing else len(text)].strip("\r\n")
        if closing is None:
            return None
        position = closing.end()
    return None
