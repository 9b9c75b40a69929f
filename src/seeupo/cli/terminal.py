"""All output of the command line. Text from outside is made visible here, whichever command prints it.

Strings are single lines without markup; only `echo_text` and rich's `Text` contain line breaks.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from seeupo.utils.terminal import Terminal
from seeupo.utils.text import one_line, visible

__all__ = [
    "Terminal",
    "confirm",
    "echo",
    "echo_json",
    "echo_text",
    "is_interactive",
    "note",
    "prompt",
    "visible_diagnostics",
]


def echo(line: object = "", *, err: bool = False) -> None:
    """Print one line; line breaks in it become visible."""
    _write(one_line(line), err=err)


def echo_text(text: str, *, err: bool = False) -> None:
    """Print a text of any number of lines."""
    _write(visible(text), err=err)


def echo_json(value: object, *, indent: int = 1) -> None:
    _write(json.dumps(value, indent=indent).replace("\x7f", r"\u007f"))


def note(text: object) -> None:
    """Print one line to standard error."""
    echo(text, err=True)


def prompt(text: str) -> str:
    """Ask for one line of input; raise `click.Abort` at its end."""
    return str(click.prompt(text, default="", show_default=False))


def is_interactive() -> bool:
    """Return whether a user can see a question on standard error and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask a yes/no question on standard error; raise `click.Abort` at the end of the input."""
    return click.confirm(question, err=True)


def _write(text: str, *, err: bool = False) -> None:
    # By default, click writes UTF-8 to a stream whose encoding is ASCII.
    click.echo(text, file=sys.stderr if err else sys.stdout)


class VisibleRecord(logging.LogRecord):
    """A log record whose message is visible text."""

    def getMessage(self) -> str:  # noqa: N802 (the standard library's name)
        return visible(super().getMessage())


@contextmanager
def visible_diagnostics() -> Iterator[None]:
    """Print warnings, log messages and tracebacks as visible text, also if the terminal cannot encode it.

    Input that is not text in the terminal's encoding is read as escapes, too.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.excepthook = lambda _, error, __: echo_text("".join(traceback.format_exception(error)), err=True)
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(VisibleRecord)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: note(f"warning: {message}")
            yield
    finally:
        logging.setLogRecordFactory(factory)
