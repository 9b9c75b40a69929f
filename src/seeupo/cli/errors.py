"""User errors on the command line: one message, no traceback, a non-zero exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from seeupo.cli.terminal import visible_diagnostics
from seeupo.envs.failures import EnvFailure
from seeupo.errors import UserError
from seeupo.utils.text import one_line, visible


class CommandGroup(click.Group):
    """The root command. Prints every `UserError` and `EnvFailure` of its commands as a message."""

    def main(self, *args: Any, **options: Any) -> Any:
        with visible_diagnostics():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _messages():
            return super().invoke(ctx)


@contextmanager
def _messages() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise click.ClickException("\n".join(map(one_line, error.lines))) from None
    except EnvFailure as error:
        # The end of a worker's output may follow; indented, it cannot pose as a line of this program.
        raise click.ClickException("\n  ".join(map(one_line, str(error).split("\n")))) from None
    except click.ClickException as error:
        error.message = visible(error.message)
        raise
