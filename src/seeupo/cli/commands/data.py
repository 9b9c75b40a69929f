"""`seeupo data`: check files of demonstrations."""

from __future__ import annotations

from pathlib import Path

import click

from seeupo.cli.terminal import echo


@click.group()
def data() -> None:
    """Check demonstrations for a warm start."""


@data.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL", help="Model or run directory that the file must fit; counts its tokens.")
@click.option("--plain", is_flag=True, default=None, help="Use the plain template, without reasoning.")
def check_file(*, file: Path, model: str | None, plain: bool | None) -> None:
    """Check a FILE of demonstrations and print what is in it.

    FILE is what warm_start.file takes: JSON lines of chat messages or of prompt/completion pairs, or a trajectory file
    of a run. The first problem is printed with its line, and the exit code is then 1.
    """
    from seeupo.training.data_check import check_data

    found = check_data(file, model=model, plain=plain)
    echo(f"{file}: {len(found.turns)} demonstrations ({found.format})")
    if found.roles:
        echo(f"messages   {', '.join(f'{role} {count:,}' for role, count in found.roles.items())}")
    if found.turns:
        mean = sum(found.turns) / len(found.turns)
        spread = f"{min(found.turns)} to {max(found.turns)} per demonstration, mean {mean:.1f}"
        echo(f"turns      {sum(found.turns):,} to train on; {spread}")
    if found.roles:
        echo(f"responses  {found.thoughts:,} of {sum(found.turns):,} have a thought; {found.calls:,} tool calls")
    if found.rewards:
        mean = sum(found.rewards) / len(found.rewards)
        echo(f"rewards    {min(found.rewards):g} to {max(found.rewards):g}, mean {mean:.3g}")
    if found.failed:
        echo(f"failed     {found.failed:,} trajectories, which are not used")
    if found.trained_tokens:
        longest = f"longest prompt {found.longest_prompt:,}, longest response {found.longest_response:,}"
        echo(f"tokens     {found.trained_tokens:,} to train on; {longest}")
