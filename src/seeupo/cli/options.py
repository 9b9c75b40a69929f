"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def parse_options(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, object]:
    from seeupo.config.toml import parse_value

    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r}: expected KEY=VALUE")
        options[key] = parse_value(text)
    return options


env_options = click.option(
    "--option", "-o", "options", multiple=True, callback=parse_options, metavar="KEY=VALUE",
    help="Option of the environment, with a value as in TOML or JSON; strings need no quotes. Repeatable.",
)  # fmt: skip


def parse_checkpoint(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "best":
        return value
    if not value.isdecimal() or len(value) > 9:
        raise click.BadParameter(f"{value!r}: expected the number of a checkpoint, or best")
    return int(value)


checkpoint_option = click.option(
    "--checkpoint", callback=parse_checkpoint, metavar="N|best",
    help="Checkpoint of the run, by its iteration or best.  [default: the final policy]",
)  # fmt: skip


def trust_options(command: F) -> F:
    """Add the options with which the user allows what a recipe or a run cannot allow itself."""
    trust = click.option(
        "--trust", multiple=True, metavar="REFERENCE",
        help="Code to run, such as rewards.py:exact, or Ray cluster to join that the recipe or run names; repeatable.",
    )  # fmt: skip
    return trust(unsandboxed_option(command))


unsandboxed_option = click.option(
    "--unsandboxed", is_flag=True, help="Run environment workers without a sandbox, with access to your files."
)
