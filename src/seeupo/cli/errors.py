"""User errors on the command line: one message, no traceback, a non-zero exit code."""

from __future__ import annotations

from typing import Any

import click

from seeupo.envs.failures import EnvFailure
from seeupo.errors import UserError


class CommandGroup(click.Group):
    """The root command. Prints every `UserError` and `EnvFailure` of its commands as a message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (UserError, EnvFailure) as error:
            raise click.ClickException(str(error)) from None
