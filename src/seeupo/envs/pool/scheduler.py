"""Assign each episode to the least busy slot that has room, in order of arrival."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from seeupo.envs.failures import PoolClosed
from seeupo.envs.pool.slot import Slot

T = TypeVar("T")


class Scheduler:
    """Distributes episodes over slots with room for `room` episodes each, or any number if None."""

    def __init__(self, slots: Sequence[Slot], room: int | None) -> None:
        self.slots = list(slots)
        self.room = room
        self.queue: deque[Assignment] = deque()
        self.lock = threading.Lock()
        self.closed: PoolClosed | None = None

    def assign(self) -> Assignment:
        """Return an assignment, which may have to wait for its slot."""
        assignment = Assignment(self)
        with self.lock:
            self.queue.append(assignment)
            self._fill_slots()
        return assignment

    def add(self, slots: Sequence[Slot]) -> None:
        """Use more slots."""
        with self.lock:
            self.slots += slots
            self._fill_slots()

    def least_busy(self) -> Slot:
        """Return the slot with the fewest sessions; among several, one that already has a worker."""
        return _least_busy(self.slots)

    def close(self, refusal: PoolClosed) -> None:
        """Stop assigning slots; calls that wait for one fail."""
        with self.lock:
            self.closed = refusal
            waiting = [future for assignment in self.queue for _, future in assignment.waiting]
            self.queue.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)

    def _fill_slots(self) -> None:
        while self.queue:
            free = [slot for slot in self.slots if self.room is None or slot.episodes < self.room]
            if not free:
                return
            assignment = self.queue.popleft()
            assignment.slot = _least_busy(free)
            assignment.slot.episodes += 1
            for call, future in assignment.waiting:
                assignment.slot.submit(call, future)
            assignment.waiting.clear()


class Assignment:
    """The place of an episode in a slot."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.slot: Slot | None = None
        self.waiting: list[tuple[Callable[[Slot], Any], Future[Any]]] = []
        self.released = False

    def submit(self, call: Callable[[Slot], T]) -> Future[T]:
        """Make the call in the slot as soon as there is one."""
        future: Future[T] = Future()
        with self.scheduler.lock:
            slot, refusal = self.slot, self.scheduler.closed
            if slot is None and refusal is None:
                self.waiting.append((call, future))
        # Outside the lock, because a future's callbacks may make the next call.
        if slot is not None:
            slot.submit(call, future)
        elif refusal is not None:
            future.set_exception(refusal)
        return future

    def release(self) -> None:
        """Make room for the next episode in the queue; idempotent."""
        with self.scheduler.lock:
            if self.slot is not None and not self.released:
                self.released = True
                self.slot.episodes -= 1
                self.scheduler._fill_slots()


def _least_busy(slots: Sequence[Slot]) -> Slot:
    return min(slots, key=lambda slot: (slot.sessions, slot.thread is None))
