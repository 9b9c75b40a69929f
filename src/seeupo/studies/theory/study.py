"""All claims, measured side by side in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from seeupo.studies.theory.backbones import gae_clipped, grae_clipped_bandit, grae_clipped_mdp, grae_reinforce
from seeupo.studies.theory.estimators import gae_bias_bound, grae_bias_and_gradient
from seeupo.studies.theory.mechanism import mechanism
from seeupo.studies.theory.normalisation import constant_shifts, group_deviation_drift, normalisation_keeps_maximiser
from seeupo.studies.theory.sequential import global_optimality, identity_behind_m, monotonic_improvement
from seeupo.studies.theory.setting import Scale
from seeupo.studies.theory.verdict import Claim

CLAIMS: dict[int, Callable[[Scale], Claim]] = {
    1: monotonic_improvement,
    2: global_optimality,
    3: gae_bias_bound,
    4: grae_bias_and_gradient,
    5: grae_reinforce,
    6: gae_clipped,
    7: grae_clipped_mdp,
    8: grae_clipped_bandit,
    9: group_deviation_drift,
    10: normalisation_keeps_maximiser,
    11: identity_behind_m,
    12: constant_shifts,
    13: mechanism,
}
SLOW = (13, 1, 2, 7)
"""Started first, so that no process is left alone with a long one."""


def measure(scale: Scale) -> Iterator[Claim]:
    """Every claim as soon as it is measured, in whatever order they finish. Stopping early ends the workers."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(min(len(CLAIMS), os.cpu_count() or 1), context, initializer=_start_worker)
    try:
        order = sorted(CLAIMS, key=lambda number: SLOW.index(number) if number in SLOW else len(SLOW))
        futures = [executor.submit(CLAIMS[number], scale) for number in order]
        for future in as_completed(futures):
            yield future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()


def _start_worker() -> None:
    # An interrupt reaches the whole process group; the parent deals with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread per process: the tensors are tiny, and the processes share the cores.
    torch.set_num_threads(1)
