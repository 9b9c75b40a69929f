"""Options that several commands have, and what is checked of them before any work begins."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click

from seeupo.utils.atomic_files import partial_of


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    if value == "":
        raise click.BadParameter("it must not be empty")
    return None if value is None else Path(value)


def parse_options(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, object]:
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} should be key=value")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    return options


env_options = click.option(
    "--option", "-o", "options", multiple=True, callback=parse_options, metavar="KEY=VALUE",
    help="An option of the environment; may be given several times.",
)  # fmt: skip


def check_outputs(json_file: Path | None, report_dir: Path | None) -> None:
    """Find out before the work begins whether its results can be written."""
    if json_file and not json_file.resolve().parent.is_dir():
        raise click.BadParameter(f"{json_file.parent} is not a folder; make it first", param_hint="--json")
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
