"""All output of the command line. Text from outside is made visible here, whichever command prints it.

Strings are single lines without markup; only `echo_text` and rich's `Text` contain line breaks.
"""

from __future__ import annotations

import json
import sys

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
