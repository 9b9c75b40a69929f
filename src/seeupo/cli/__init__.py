"""Command line: commands parse arguments, call the library and print results."""

import click

import seeupo
from seeupo.cli.commands import agents, compare, data, doctor, environments, evaluation, models, serving, training
from seeupo.cli.errors import CommandGroup


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(seeupo.__version__, prog_name="seeupo")
def main() -> None:
    """Train multi-turn language-model agents with sequence-level sequential policy updates."""


for command in (
    training.train_command,
    training.plan_command,
    training.report,
    training.export_command,
    training.recipes,
    training.algorithms,
    compare.compare_command,
    environments.envs,
    models.models,
    evaluation.eval_command,
    serving.serve_command,
    agents.agents,
    data.data,
    doctor.doctor,
):
    main.add_command(command)
