"""Options shared by several commands, and checks before any work starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from seeupo.utils.atomic_files import partial_of

F = TypeVar("F", bound=Callable[..., Any])


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    if value == "":
        raise click.BadParameter("expected a path, not an empty string")
    return None if value is None else Path(value)


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
        help="Code that the recipe or run names and that may run, such as rewards.py:exact; repeatable.",
    )  # fmt: skip
    return trust(unsandboxed_option(command))


unsandboxed_option = click.option(
    "--unsandboxed", is_flag=True, help="Run environment workers without a sandbox, with access to your files."
)


def check_outputs(json_file: Path | None, report_dir: Path | None) -> None:
    """Check before the work starts whether its results can be written."""
    if json_file and not json_file.resolve().parent.is_dir():
        raise click.BadParameter(
            f"the directory {json_file.parent} does not exist; create it first", param_hint="--json"
        )
    if report_dir and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter("needs matplotlib: pip install 'seeupo[figures]'", param_hint="--report")
    try:
        if report_dir:
            report_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{report_dir} cannot be written: {error.strerror}", param_hint="--report") from None
    try:
        if json_file:
            partial_of(json_file).touch()
            partial_of(json_file).unlink()
    except OSError as error:
        raise click.BadParameter(f"{json_file} cannot be written: {error.strerror}", param_hint="--json") from None
