"""Infrastructure failures of episodes.

An `EnvFailure` means that an episode was lost to the infrastructure or to a bug in the environment: the runner must
not score it. Errors that the user can fix are `seeupo.errors.EnvError` instead. A worker that an action breaks is
neither: the episode ends with its official score.
"""

from __future__ import annotations

from typing import ClassVar

from seeupo.types import Failure, FailureKind


class EnvFailure(Exception):
    """An episode or another call failed, and the model did not cause it.

    Attributes:
        kind: Kind of failure, as recorded in the trajectory.
        environment: Name of the environment.
        task: Id of the task; None if the call was not about a task.
        action: Last action that was taken or tried; None before the first.
        reason: Description of the failure.
    """

    kind: ClassVar[FailureKind] = FailureKind.OTHER

    def __init__(self, *, environment: str, task: str | None, action: str | None, reason: str) -> None:
        self.environment = environment
        self.task = task
        self.action = action
        self.reason = reason
        last_action = "" if action is None else f", last action {action[:200]!r}"
        where = environment if task is None else f"{environment}, task {task}"
        super().__init__(f"{where}{last_action}: {reason}")

    def record(self) -> Failure:
        """Return the failure as data for a trajectory."""
        return Failure(self.kind, str(self))


class WorkerLost(EnvFailure):
    """The worker process was killed or exited, and so did its replacement."""

    kind = FailureKind.WORKER_LOST


class CallTimedOut(EnvFailure):
    """A call other than an action exceeded its wall-clock limit twice."""

    kind = FailureKind.TIMED_OUT


class EnvRaised(EnvFailure):
    """The environment raised an exception or returned a malformed answer, twice."""

    kind = FailureKind.RAISED


class NotReproducible(EnvFailure):
    """Replaying an episode's actions in a fresh worker gave different results."""

    kind = FailureKind.NOT_REPRODUCIBLE


class PoolClosed(EnvFailure):
    """The pool was closed while the call was queued or running."""

    kind = FailureKind.POOL_CLOSED
