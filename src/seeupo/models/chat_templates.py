"""Render the chat templates of models within limits of time, memory and size: a template is a stranger's program.

transformers' sandbox keeps a template from the rest of the process, but not from computing forever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from seeupo.errors import ModelError, first_line
from seeupo.models import render_process
from seeupo.utils.python_process import python_command

SECONDS = 10.0
"""Computing time of one text; an ordinary template takes less than a millisecond."""
MEMORY_BYTES = 2**30
KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ")
"""Environment variables of the process: what starts Python, and the time zone, which templates can print."""
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Template for tokenizers without one: the role, a colon, the content, and the end-of-turn token."""
TINY_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Template of the model `tiny`: ChatML."""
OWN_TEMPLATES = (PLAIN_TEMPLATE, TINY_TEMPLATE)
"""Templates that are rendered in this process."""


class TemplateLimitError(ModelError):
    """A chat template exceeds a limit."""


class _Renderer:
    """A process that renders templates."""

    def __init__(self) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            python_command(str(Path(render_process.__file__)), str(SECONDS), str(MEMORY_BYTES)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # each thread reserves memory
            text=True,
            encoding="ascii",
            start_new_session=True,  # Ctrl-C is for the trainer, which still renders until its next safe point
        )
        self.close = weakref.finalize(self, _end, self._process)

    def answer(self, request: str) -> dict[str, Any]:
        """Return the answer to a request, or the limit that has ended the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                return dict(json.loads(line))
        except BrokenPipeError:
            pass
        if self._process.wait() == -getattr(signal, "SIGPROF", 0):
            return {"limit": f"it takes more than {SECONDS:g} s of computing time"}
        return {"limit": f"its process ended with exit code {self._process.returncode}"}


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


_lock = threading.Lock()
_renderers: dict[int, _Renderer] = {}
"""The renderer of this process, by its id: a forked process does not use that of its parent."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return the text of a conversation up to where the model's response begins, like `apply_chat_template`.

    Raises:
        TemplateLimitError: The template exceeds a limit.
        ModelError: The template fails.
    """
    if template in OWN_TEMPLATES:
        entries = [dict(message) for message in messages]
        return str(
            tokenizer.apply_chat_template(entries, chat_template=template, add_generation_prompt=True, tokenize=False)
        )
    conversation = {"conversations": [messages], "tools": tools, **tokenizer.special_tokens_map}
    try:
        request = f"{json.dumps(template)}\n{json.dumps(conversation)}\n"
    except (TypeError, ValueError, RecursionError) as error:  # an environment's values may be any
        raise ModelError(f"the chat template failed: {type(error).__name__}: {first_line(error)}") from None
    answer = _answer(request)
    if "text" in answer:
        return str(answer["text"])
    if "error" in answer:
        raise ModelError(f"the chat template failed: {answer['error']}")
    raise TemplateLimitError(
        f"the chat template of {tokenizer.name_or_path or 'this tokenizer'} is not usable: {answer['limit']}. It may "
        "be hostile; use a model with another template"
    )


def _answer(request: str) -> dict[str, Any]:
    with _lock:
        renderer = _renderers.get(os.getpid())
        if renderer is None:
            renderer = _renderers[os.getpid()] = _Renderer()
        answer: dict[str, Any] = {}
        try:
            answer = renderer.answer(request)
        finally:  # also after an interrupt, when the next answer would be that to this request
            if not answer or "limit" in answer:
                del _renderers[os.getpid()]
                renderer.close()
        return answer
