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

    checked = check_data(file, model=model, plain=plain)
    echo(f"{file}: {len(checked.turns)} demonstrations ({checked.format})")
    if checked.roles:
        echo(f"messages   {', '.join(f'{role} {count:,}' for role, count in checked.roles.items())}")
    if checked.turns:
        mean = sum(checked.turns) / len(checked.turns)
        spread = f"{min(checked.turns)} to {max(checked.turns)} per demonstration, mean {mean:.1f}"
        echo(f"turns      {sum(checked.turns):,} to train on; {spread}")
    if checked.roles:
        echo(f"responses  {checked.thoughts:,} of {sum(checked.turns):,} have a thought; {checked.calls:,} tool calls")
    if checked.rewards:
        mean = sum(checked.rewards) / len(checked.rewards)
        echo(f"rewards    {min(checked.rewards):g} to {max(checked.rewards):g}, mean {mean:.3g}")
    if checked.failed:
        echo(f"failed     {checked.failed:,} trajectories, which are not used")
    if checked.trained_tokens:
        longest = f"longest prompt {checked.longest_prompt:,}, longest response {checked.longest_response:,}"
        echo(f"tokens     {checked.trained_tokens:,} to train on; {longest}")
