"""Warnings, log messages and tracebacks on standard error, in which text from outside cannot pose as another line."""

from __future__ import annotations

import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from seeupo.utils.text import indented, one_line


class VisibleRecord(logging.LogRecord):
    """A log record whose message is visible text; its further lines are indented."""

    def getMessage(self) -> str:  # noqa: N802 (the standard library's name)
        return indented(super().getMessage())


def print_error(error: BaseException) -> None:
    """Print an exception with its traceback, all but the first line indented."""
    print(indented("".join(traceback.format_exception(error)).rstrip("\n")), file=sys.stderr, flush=True)


@contextmanager
def visible_diagnostics() -> Iterator[None]:
    """Print warnings, log messages and tracebacks as visible text, also if the terminal cannot encode it.

    Input that is not text in the terminal's encoding is read as escapes, too.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.excepthook = lambda _, error, __: print_error(error)
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(VisibleRecord)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(one_line(f"warning: {message}"), file=sys.stderr)
            yield
    finally:
        logging.setLogRecordFactory(factory)
