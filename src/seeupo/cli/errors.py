"""User errors on the command line: one message, no traceback, a non-zero exit code."""

from __future__ import annotations

import io
import sys
from typing import Any, NoReturn

import click

from seeupo.cli.terminal import echo_text
from seeupo.envs.failures import EnvFailure
from seeupo.errors import ConfigError, UserError
from seeupo.utils.diagnostics import visible_diagnostics
from seeupo.utils.python_process import safe_children
from seeupo.utils.text import indented, one_line


class CommandGroup(click.Group):
    """The root command. Prints every `UserError` and `EnvFailure` of its commands as a message."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        with visible_diagnostics(), safe_children():
            try:
                code = super().main(*args, **{**options, "standalone_mode": False})
            except (UserError, EnvFailure, click.ClickException) as error:
                echo_text(_message(error), err=True)
                code = getattr(error, "exit_code", 1)
            except click.Abort:
                echo_text("Aborted!", err=True)
                code = 1
        sys.exit(code)


def _message(error: UserError | EnvFailure | click.ClickException) -> str:
    if isinstance(error, click.ClickException):
        text = io.StringIO()
        error.show(text)  # a usage error has the usage above its message
        return text.getvalue().removesuffix("\n")
    if isinstance(error, ConfigError):
        return "Error: " + "\n".join(map(one_line, error.lines))
    # A traceback or the end of a worker's output may follow; indented, it cannot pose as a line of this program.
    return f"Error: {indented(str(error))}"
