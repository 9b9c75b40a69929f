"""What goes wrong, as lines for people instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def plain_errors() -> Iterator[None]:
    """What is wrong with an environment or its options, as one line instead of a traceback."""
    from seeupo.envs.failures import EnvError, EnvFailure

    try:
        yield
    except (EnvError, EnvFailure) as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def training_errors() -> Iterator[None]:
    """What keeps a run from beginning or going on, as lines for people instead of a traceback."""
    from seeupo.models.catalog import ModelError
    from seeupo.training.checkpoints import CheckpointError
    from seeupo.training.configuration import ConfigurationError
    from seeupo.training.evaluation import EvaluationError
    from seeupo.training.failures import TrainingError
    from seeupo.training.run_folder import RunError
    from seeupo.training.trackers import TrackerError

    known = (CheckpointError, ConfigurationError, EvaluationError, ModelError, RunError, TrackerError, TrainingError)
    try:
        with plain_errors():
            yield
    except known as error:
        raise click.ClickException(str(error)) from None


class NoSuchName(click.ClickException):
    """A wrong argument like any other, but told in one line, without the usage."""

    exit_code = 2
