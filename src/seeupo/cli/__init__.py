"""The command line. Commands parse, call, and print; the work is done elsewhere."""

import click

import seeupo
from seeupo.cli import environments, policies, studies, training


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(seeupo.__version__, prog_name="seeupo")
def main() -> None:
    """Train language-model agents over many turns by sequence-level sequential policy updates."""


for command in (
    training.train_command,
    training.report,
    training.recipes,
    training.algorithms,
    studies.theory,
    studies.study,
    environments.envs,
    policies.models,
    policies.evaluate,
    policies.agents,
):
    main.add_command(command)
