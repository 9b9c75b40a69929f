"""Which episode is in which slot: the least busy one that has room, in the order of asking."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from seeupo.envs.failures import PoolClosed
from seeupo.envs.slot import Slot

T = TypeVar("T")


class Seating:
    """Slots with room for some number of episodes each, or for any number (None)."""

    def __init__(self, slots: Sequence[Slot], room: int | None) -> None:
        self.slots = slots
        self.room = room
        self.queue: deque[Seat] = deque()
        self.lock = threading.Lock()
        self.closed: PoolClosed | None = None

    def take(self) -> Seat:
        """A seat, which may have to wait for its slot."""
        seat = Seat(self)
        with self.lock:
            self.queue.append(seat)
            self._assign()
        return seat

    def least_busy(self) -> Slot:
        """Of several, one that has a worker already."""
        return min(self.slots, key=lambda slot: (slot.sessions, slot.thread is None))

    def close(self, refusal: PoolClosed) -> None:
        """Nobody is seated any more; calls of those who wait fail."""
        with self.lock:
            self.closed = refusal
            waiting = [future for seat in self.queue for _, future in seat.waiting]
            self.queue.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)

    def _assign(self) -> None:
        while self.queue:
            free = [slot for slot in self.slots if self.room is None or slot.episodes < self.room]
            if not free:
                return
            seat = self.queue.popleft()
            seat.slot = min(free, key=lambda slot: (slot.sessions, slot.thread is None))
            seat.slot.episodes += 1
            for call, future in seat.waiting:
                seat.slot.submit(call, future)
            seat.waiting.clear()


class Seat:
    """An episode's place in a slot."""

    def __init__(self, seating: Seating) -> None:
        self.seating = seating
        self.slot: Slot | None = None
        self.waiting: list[tuple[Callable[[Slot], Any], Future[Any]]] = []
        self.left = False

    def submit(self, call: Callable[[Slot], T]) -> Future[T]:
        """Have the call made in the slot, as soon as there is one."""
        future: Future[T] = Future()
        with self.seating.lock:
            slot, refusal = self.slot, self.seating.closed
            if slot is None and refusal is None:
                self.waiting.append((call, future))
        # Outside of the lock, because a future's callbacks may make the next call.
        if slot is not None:
            slot.submit(call, future)
        elif refusal is not None:
            future.set_exception(refusal)
        return future

    def leave(self) -> None:
        """Make room for the next in the queue. Twice is fine."""
        with self.seating.lock:
            if self.slot is not None and not self.left:
                self.left = True
                self.slot.episodes -= 1
                self.seating._assign()
