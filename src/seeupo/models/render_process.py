"""The process that renders chat templates; `seeupo.models.chat_templates` starts it as a script.

A request is two lines of JSON, the template and the conversation; the answer is a line. A template is a program, and
its time and memory are limited by the kernel, because no counter sees the work of a single operator, filter or empty
loop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

TEXT_PER_CHARACTER, TEXT_CHARACTERS = 8, 200_000
"""Maximum length of a text: per character of the conversation, and on top of that."""


def main(seconds: float, memory_bytes: int) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    with suppress(ImportError, ValueError, OSError):  # on systems without this limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    limited = hasattr(signal, "setitimer")  # not on Windows
    while line := sys.stdin.readline():
        template = json.loads(line)
        conversation = sys.stdin.readline()
        # Computing time, not time on a clock: at the end the kernel kills this process.
        if limited:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = rendered(render_jinja_template, template, conversation)
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(answer + "\n")
        answers.flush()


def rendered(render: Any, template: str, conversation: str) -> str:
    """Return the answer to a request: the text, an error of the template, or a limit that it exceeds."""
    characters = TEXT_CHARACTERS + TEXT_PER_CHARACTER * len(conversation)
    try:
        (text,), _ = render(chat_template=template, add_generation_prompt=True, **json.loads(conversation))
        if len(text) > characters:
            return json.dumps({"limit": f"it makes a text of more than {characters:,} characters"})
        return json.dumps({"text": text})
    except MemoryError:
        return json.dumps({"limit": "it needs too much memory"})
    except Exception as error:  # a template is a program
        lines = [line.strip() for line in str(error)[:1000].splitlines()]
        message = next((line for line in lines if line), type(error).__name__)
        return json.dumps({"error": f"{type(error).__name__}: {message}"})


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
