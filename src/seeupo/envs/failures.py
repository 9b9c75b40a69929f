"""Failures of calls to environments.

An `EnvFailure` means that an episode was lost to the infrastructure or to a bug in the environment: the runner must
not score it. Errors that the user can fix are `seeupo.errors.EnvError` instead. A worker that an action breaks is
neither: the episode ends with its official score.
"""

from __future__ import annotations

from enum import StrEnum

from seeupo.types import FailureKind


class EnvFailure(Exception):
    """An episode or another call failed, and the model did not cause it.

    Attributes:
        kind: Kind of failure, as recorded in the trajectory.
        environment: Name of the environment.
        reason: Description of the failure.
        task: Id of the task; None if the call was not about a task.
        action: Last action that was taken or tried; None before the first.
    """

    def __init__(
        self, kind: FailureKind, environment: str, reason: str, *, task: str | None = None, action: str | None = None
    ) -> None:
        self.kind = kind
        self.environment = environment
        self.reason = reason
        self.task = task
        self.action = action
        last_action = "" if action is None else f", last action {action[:200]!r}"
        where = environment if task is None else f"{environment}, task {task}"
        super().__init__(f"{where}{last_action}: {reason}")


def pool_closed(environment: str) -> EnvFailure:
    """Return the failure of a call that was queued or running when the pool was closed."""
    return EnvFailure(FailureKind.POOL_CLOSED, environment, "the pool is closed")


class FailureCause(StrEnum):
    """Cause of a failed call to a worker."""

    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    RECURSION = "recursion"
    STOPPED = "stopped"
    KILLED = "killed"
    RAISED = "raised"


class WorkerFailure(Exception):
    """A call to a worker failed; the worker must not be used again."""

    def __init__(self, cause: FailureCause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason
