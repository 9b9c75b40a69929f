"""Run many concurrent episodes on a few workers.

Calls return futures, so hundreds of episodes need only one thread per worker. Each episode stays in one slot. If its
worker breaks, the slot replays the episode in a fresh one, see `seeupo.envs.pool.slot`.
"""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from seeupo.envs.failures import EnvFailure, pool_closed
from seeupo.envs.pool.episode import BlockingEnv, Episode, PooledExpert, Scheduler, least_busy
from seeupo.envs.pool.launching import launch_settings, spec_and_factory
from seeupo.envs.pool.sandbox import Limits
from seeupo.envs.pool.slot import Backend, Session, Slot
from seeupo.envs.pool.wire import to_json
from seeupo.envs.pool.worker import Launch
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import check_trust, named_code
from seeupo.errors import EnvError, suggest
from seeupo.protocols import EnvFactory
from seeupo.types import StepResult, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Mistakes:
    """Noise of a noisy expert.

    Attributes:
        seed: Random seed of the mistakes.
        rates: Probability of each mistake, by the environment's names; its own defaults for those not given.
    """

    seed: int
    rates: Mapping[str, float]


class EnvPool:
    """Runs episodes of one environment, in worker processes or, for trusted code, in this process."""

    def __init__(
        self,
        environment: str | EnvSpec | EnvFactory,
        *,
        options: Mapping[str, Any] | None = None,
        workers: int | None = None,
        limits: Limits | None = None,
        trust: Collection[str] = (),
        unsandboxed: bool = False,
    ) -> None:
        """Start the first worker, so that configuration errors are raised here.

        Args:
            environment: Name, spec, or factory object of a custom environment, which is trusted and runs in this
                process. "module:Factory" runs in workers.
            options: Keyword arguments for the factory of a name or spec.
            workers: Maximum number of workers. Default: one per core up to 8; one thread for a factory object.
            limits: Resource limits that replace the environment's own.
            trust: Code that `environment` and `options` may name; other code is refused with `TrustError`.
            unsandboxed: Run workers without a sandbox.
        """
        if workers is not None and workers < 1:
            raise EnvError(f"workers={workers}: expected at least 1")
        options = dict(options or {})
        check_trust(named_code(environment, options), trust)
        spec, factory = spec_and_factory(environment, options)
        launch = partial(launch_settings, spec, options, limits or spec.limits, unsandboxed=unsandboxed)
        run = launch(role="run") if factory is None else factory
        count = workers or (min(8, os.cpu_count() or 1) if factory is None else 1)
        self.name = spec.name
        self._scheduler = Scheduler([Slot(self.name, run) for _ in range(count)], spec.episodes_per_worker)
        separate_judge = spec.separate_judge and factory is None
        self._judge = Slot(self.name, launch(role="judge")) if separate_judge else None
        self._session_ids = itertools.count()
        self._tasks: dict[str, tuple[Task, ...]] = {}
        atexit.register(self.close)
        try:
            self.splits = self._ask({"op": "splits"}, tuple[str, ...])
        except BaseException:
            self.close()
            raise

    def spread(self, nodes: Mapping[str, Callable[[Launch], Backend]]) -> None:
        """Use as many workers on each of these nodes as on this machine, started by the node's function.

        The first worker of every node starts here, so that what a node lacks is an error now. A factory in this process
        and a separate judge stay where they are. Close the pool before Ray is shut down.
        """
        source, count = self._scheduler.slots[0].source, len(self._scheduler.slots)
        if not isinstance(source, Launch):
            return
        for node, start in nodes.items():
            slots = [Slot(self.name, source, start) for _ in range(count)]
            self._scheduler.add_slots(slots)
            try:
                slots[0].submit(lambda slot: slot.call({"op": "splits"}, tuple[str, ...])).result()
            except (EnvError, EnvFailure) as error:
                raise EnvError(f"node {node} of the Ray cluster cannot run {self.name}: {error}") from None

    def count_tasks(self, split: str) -> int:
        """Return the number of tasks of a split, which an environment may declare; a split without is an error."""
        self._check_split(split)
        count = self._ask({"op": "count_tasks", "split": split}, int)
        return count or len(self.first_tasks(split, None))

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise EnvError(f"{self.name} has no split {split!r}; {suggest(split, self.splits)}")

    def tasks(self, split: str) -> tuple[Task, ...]:
        """Return the tasks of a split."""
        self._check_split(split)
        if split not in self._tasks:
            self._tasks[split] = self._ask({"op": "tasks", "split": split}, tuple[Task, ...])
        return self._tasks[split]

    def first_tasks(self, split: str, count: int | None) -> tuple[Task, ...]:
        """Return the first `count` tasks of a split, or all; a split without tasks is an error."""
        if not (tasks := self.tasks(split)[:count]):
            raise EnvError(f"split {split!r} of {self.name} has no tasks; choose another split or more tasks")
        return tasks

    def start(self, task: Task, seed: int) -> Episode:
        """Return a new episode. Its calls wait until a worker has room for it."""
        return Episode(self._new_session(task), task, seed, self._scheduler, self._judge)

    def env(self) -> BlockingEnv:
        """Return a blocking environment that runs one episode at a time."""
        return BlockingEnv(self.start)

    def expert(self, task: Task, *, mistakes: Mistakes | None = None) -> PooledExpert | None:
        """Return an expert for the task, or a noisy expert with these mistakes; None if the task has no expert."""
        session = self._new_session(task)
        noise = None if mistakes is None else {"seed": mistakes.seed, "rates": dict(mistakes.rates)}
        request = {"op": "expert", "session": session.id, "task": to_json(task), "mistakes": noise}
        slot = self._task_slot()
        slot.experts += 1
        expert = PooledExpert(slot, session)
        return expert if slot.submit(lambda slot: slot.call(request, bool, session=session)).result() else None

    def try_task(self, task: Task) -> StepResult:
        """Run an episode with one empty action and return its first result, so that mistakes are reported at once.

        Raise `EnvError` if the environment fails or breaks the contract.
        """
        env = self.env()
        try:
            first = env.reset(task, seed=task.seed)
            if not first.done:
                env.step("")
            env.score()
            env.close()
            return first
        except EnvFailure as failure:
            raise EnvError(*str(failure).split("\n")) from None

    def vocabulary(self) -> tuple[str, ...]:
        """Return all words of an environment with a closed vocabulary; empty for others."""
        return self._ask({"op": "vocabulary"}, tuple[str, ...])

    def has_noisy_expert(self) -> bool:
        """Return whether the environment has noisy experts."""
        return self._ask({"op": "has_noisy_expert"}, bool)

    def separate_step_rewards(self) -> bool:
        """Return whether the environment declares that the rewards of its steps are not part of its scores."""
        return self._ask({"op": "separate_step_rewards"}, bool)

    def close(self) -> None:
        """Kill all workers; idempotent. Queued and running calls fail."""
        atexit.unregister(self.close)
        self._scheduler.close(pool_closed(self.name))
        slots = [*self._scheduler.slots, *([] if self._judge is None else [self._judge])]
        for slot in slots:
            slot.stop()
        for slot in slots:
            slot.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_session(self, task: Task) -> Session:
        return Session(str(next(self._session_ids)), task.id)

    def _task_slot(self) -> Slot:
        """Return a slot that has tasks and experts: the judge if there is one."""
        return self._judge or least_busy(self._scheduler.slots)

    def _ask(self, request: Mapping[str, Any], kind: type[T]) -> T:
        return self._task_slot().submit(lambda slot: slot.call(request, kind)).result()
