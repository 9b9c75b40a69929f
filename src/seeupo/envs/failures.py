"""What can go wrong with environments, by who has to act.

`EnvError` is for the person at the keyboard: a wrong name or option, something not installed. `EnvFailure` is for the
episode runner: an episode was lost to the infrastructure or to a bug of the environment, and must not be scored.
What a model's own action breaks is neither: it ends the episode with its official score.
"""

from __future__ import annotations

from typing import ClassVar

from seeupo.types import Failure, FailureKind


class EnvFailure(Exception):
    """An episode, or another call, that came to nothing through no doing of the model.

    Attributes:
        environment: its name.
        task: the task's id, or None when the call was not about a task.
        action: the last action that the episode took or tried, or None before the first.
        reason: what happened, in plain words.
    """

    kind: ClassVar[FailureKind] = FailureKind.OTHER

    def __init__(self, *, environment: str, task: str | None, action: str | None, reason: str) -> None:
        self.environment = environment
        self.task = task
        self.action = action
        self.reason = reason
        shown = "" if action is None else f", last action {action[:200]!r}"
        where = environment if task is None else f"{environment}, task {task}"
        super().__init__(f"{where}{shown}: {reason}")

    def record(self) -> Failure:
        """Return the failure as data."""
        return Failure(self.kind, str(self))


class WorkerLost(EnvFailure):
    """The worker process was killed or ended, also in a second attempt."""

    kind = FailureKind.WORKER_LOST


class CallTimedOut(EnvFailure):
    """A call that no action can be blamed for took longer than its wall-clock limit, also in a second attempt."""

    kind = FailureKind.TIMED_OUT


class EnvRaised(EnvFailure):
    """The environment's code raised, or answered with something that is no answer, also in a second attempt."""

    kind = FailureKind.RAISED


class NotReproducible(EnvFailure):
    """Repeating an episode's actions in a fresh worker gave other results than before."""

    kind = FailureKind.NOT_REPRODUCIBLE


class PoolClosed(EnvFailure):
    """The pool was closed while the call was waiting or under way."""

    kind = FailureKind.POOL_CLOSED
