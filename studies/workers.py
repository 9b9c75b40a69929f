"""Run functions in parallel worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch

Result = TypeVar("Result")


def run_in_workers(calls: Sequence[Callable[[], Result]]) -> Iterator[Result]:
    """Start the picklable calls in order and yield each result as soon as it is done.

    Closing the generator ends the workers.
    """
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(min(len(calls), os.cpu_count() or 1), context, initializer=_start_worker)
    try:
        for future in as_completed([executor.submit(call) for call in calls]):
            yield future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()


def _start_worker() -> None:
    # An interrupt reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread per process: the tensors are tiny, and the processes share the cores.
    torch.set_num_threads(1)
