"""Workers on other nodes of a Ray cluster: the same processes and sandboxes, each in a Ray actor."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.worker import Launch, Worker
from seeupo.errors import EnvError
from seeupo.utils.cache import cache_folder

ACTOR_SECONDS = 120.0
"""Time limit for an actor to start."""
NETWORK_SECONDS = 30.0
"""Time beyond the worker's own limit after which an answer counts as lost."""


class WorkerHost:
    """The body of a Ray actor with one worker. Its only thread starts and calls the worker, as a worker requires."""

    def load(self, launch: Launch) -> tuple[str, Any]:
        """Start the worker."""
        try:
            self._worker = Worker(launch)
        except EnvError as error:
            return "usage", error.args
        return self._answer(self._worker.load)

    def call(self, request: Mapping[str, Any], seconds: float | None) -> tuple[str, Any]:
        """Call the worker."""
        return self._answer(lambda: self._worker.call(request, seconds=seconds))

    def discard(self) -> None:
        """Kill the worker and remove its folder."""
        self._worker.discard()

    def _answer(self, call: Any) -> tuple[str, Any]:
        """Return a value or an error: an exception would arrive as Ray's."""
        try:
            return "value", call()
        except EnvError as error:
            return "usage", error.args
        except WorkerFailure as failure:
            return "failure", (failure.cause.value, failure.reason)


class RemoteWorker:
    """A worker on another node. It is called like a `Worker`, and one that is lost with its node was killed.

    Args:
        launch: Settings of the worker. Paths must be the same on all nodes.
        node: Id of the node. If the node has left the cluster, the worker starts on another one.
    """

    def __init__(self, launch: Launch, *, node: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.launch = launch
        self.limits = launch.limits
        self._lock = threading.Lock()
        self._running = self._killed = False
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        alive = any(entry["NodeID"] == node and entry["Alive"] for entry in nodes)
        host: Any = ray.remote(WorkerHost)
        self._actor = host.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False) if alive else "DEFAULT",
            runtime_env={"env_vars": {"SEEUPO_CACHE": str(cache_folder().absolute())}},
        ).remote()

    def load(self) -> None:
        """Start the process and load the factory."""
        seconds = ACTOR_SECONDS + self.limits.start_seconds
        self._ask("load", self.launch, seconds=seconds)

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any:
        """Return the worker's answer; raise `WorkerFailure` or, for errors that the user can fix, `EnvError`."""
        limit = self.limits.call_seconds if seconds is None else seconds
        return self._ask("call", request, seconds, seconds=limit)

    def kill(self) -> None:
        """End a call that runs; the worker dies with its actor. Without one, `discard` ends the worker."""
        import ray

        with self._lock:
            self._killed = True
            if self._running and ray.is_initialized():
                ray.kill(self._actor)

    def discard(self) -> None:
        """End the worker and its actor."""
        import ray
        from ray.exceptions import RayError

        if ray.is_initialized():  # otherwise the actors have ended with the cluster
            with contextlib.suppress(RayError):  # it may have died
                ray.get(self._actor.discard.remote(), timeout=NETWORK_SECONDS)
            ray.kill(self._actor)

    def _ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        import ray
        from ray.exceptions import RayError

        with self._lock:
            if self._killed:
                raise WorkerFailure(FailureCause.KILLED, "the worker was killed")
            self._running = True
            answer = getattr(self._actor, method).remote(*arguments)
        try:
            kind, value = ray.get(answer, timeout=seconds + NETWORK_SECONDS)
        except RayError as error:
            raise WorkerFailure(
                FailureCause.KILLED, f"the worker on another node was lost ({type(error).__name__})"
            ) from None
        finally:
            with self._lock:
                self._running = False
        if kind == "usage":
            raise EnvError(*value)
        if kind == "failure":
            raise WorkerFailure(FailureCause(value[0]), value[1])
        return value
