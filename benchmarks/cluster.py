"""Measure iterations on 1 and 2 ranks with a sampler process, with and without a lag, and the memory of ranks.

All runs share this machine's cores, so times are given as ratios: variants take turns, iteration by iteration, and the
best iteration of each counts. An iteration is divided into the time in which ranks compute, the time in which weights
go to the sampler, and the rest, in which ranks wait for trajectories. Memory is the number of bytes of live tensors in
an update on each rank, compared with `seeupo plan`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from side_by_side import machine, table, write_results
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn

from seeupo.config.loader import read_recipe
from seeupo.config.process_settings import EngineSettings, SamplerSettings
from seeupo.config.schema import Recipe
from seeupo.distributed.fsdp import Fsdp
from seeupo.distributed.rank_group import RankGroup
from seeupo.distributed.ray_cluster import ray_cluster
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.engines.local import LocalEngine
from seeupo.planning.memory import training_memory
from seeupo.planning.stored_models import shape_of_model
from seeupo.rollout.collector import Collected
from seeupo.runs.run_directory import RunDirectory
from seeupo.training.loop import Loop
from seeupo.training.setup import build

TESTS = Path(__file__).parent.parent / "tests"
RANKS = (1, 2)
CALL_SECONDS = 300.0


def recipe_of(ranks: int, tasks: int) -> Recipe:
    """Return the recipe `tiny-pocket` on a cluster, with at most 4 turns and without a warm start."""
    recipe = read_recipe("tiny-pocket")
    return replace(
        recipe,
        run=replace(recipe.run, iterations=1000, threads=ranks),
        agent=replace(recipe.agent, max_turns=4),
        collect=replace(recipe.collect, tasks=tasks),
        engine=EngineSettings(kind="cluster", trainers=ranks, call_seconds=CALL_SECONDS),
        sampler=SamplerSettings(count=1),
        warm_start=None,
    )


class Clock:
    """Seconds spent in the calls of a method, except for those with `other` as its first argument."""

    def __init__(self, other: str = "") -> None:
        self.seconds, self.other = 0.0, other

    @contextlib.contextmanager
    def on(self, owner: type, name: str) -> Iterator[None]:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                if self.other not in arguments[1:2]:
                    self.seconds += time.perf_counter() - started

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, original)


def one_iteration(loop: Loop) -> dict[str, float]:
    ranks, sync = Clock(other="weights"), Clock()  # weights are gathered for a sync
    with ranks.on(RankGroup, "call"), sync.on(RemoteSamplers, "sync"):
        started = time.perf_counter()
        loop.update(with_random_rewards(loop.collect()))
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "ranks": ranks.seconds, "sync": sync.seconds}


def with_random_rewards(collected: Collected) -> Collected:
    """Return trajectories with rewards that differ within every group, so that an untrained policy is updated too."""
    groups = {
        name: tuple(
            replace(trajectory, score=(index + 1) / len(group), reward=(index + 1) / len(group))
            for index, trajectory in enumerate(group)
        )
        for name, group in collected.groups.items()
    }
    return replace(collected, groups=groups)


def set_lag(loop: Loop, lag: int) -> None:
    """Change the lag; what was sampled ahead is discarded, or with a lag the first trajectories are sampled."""
    loop.ahead.take()
    loop.recipe = replace(loop.recipe, collect=replace(loop.recipe.collect, lag=lag))
    if lag:
        loop.update(with_random_rewards(loop.collect()))


def measure_iterations(rounds: int, tasks: int) -> dict[str, dict[str, float]]:
    """Return the best iteration of each variant."""
    timings: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(ray_cluster(None, processes=sum(RANKS) + len(RANKS)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seeupo-benchmark-")))
        loops: dict[int, Loop] = {}
        for count in RANKS:
            recipe = recipe_of(count, tasks)
            components = stack.enter_context(build(recipe))
            run_dir = RunDirectory.create(folder / str(count), "", {})
            loops[count] = Loop(components, run_dir)
            one_iteration(loops[count])  # not measured: caches are filled
        for _ in range(rounds):
            for count, loop in loops.items():
                for lag in (0, 1):
                    set_lag(loop, lag)
                    timings.setdefault(variant(count, lag), []).append(one_iteration(loop))
    return {name: min(iterations, key=lambda iteration: iteration["seconds"]) for name, iterations in timings.items()}


def variant(ranks: int, lag: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}, lag {lag}"


def measure_memory(size: str) -> list[dict[str, Any]]:
    """Return predicted and counted bytes of an update, in one process and on each of two ranks."""
    from planning.test_memory import ModelSettings, recipe_for, small

    rows = []
    for ranks in RANKS:
        engine = EngineSettings(kind="cluster", trainers=ranks) if ranks > 1 else EngineSettings()
        recipe = recipe_for(ModelSettings(), engine=engine)
        predicted = training_memory(shape_of_model(small("llama", size), "benchmark"), recipe).peak
        with tempfile.TemporaryDirectory(prefix="seeupo-benchmark-") as folder:
            spawn(count_bytes, args=(ranks, size, folder), nprocs=ranks)
            counted = max(int((Path(folder) / str(rank)).read_text()) for rank in range(ranks))
        rows.append({"model": size, "ranks": ranks, "predicted": round(predicted), "counted": counted})
    return rows


def count_bytes(rank: int, ranks: int, size: str, folder: str) -> None:
    """Count the bytes of live tensors in an update on one rank."""
    sys.path.insert(0, str(TESTS))
    from engines.examples import TOKENIZER
    from planning.peak_memory import PeakMemory, tensors_of
    from planning.test_memory import ACTION, PROMPT, ModelSettings, SumOfLogProbs, recipe_for, small
    from seeupo.models.loading import LoadedPolicy
    from seeupo.types import Turn

    class RankMemory(PeakMemory):
        def _add(self, tensor: torch.Tensor) -> None:
            super()._add(tensor.to_local() if isinstance(tensor, DTensor) else tensor)

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    recipe = recipe_for(ModelSettings())
    engine = LocalEngine(
        LoadedPolicy(small("llama", size), TOKENIZER, "tree"),
        recipe.optimizer,
        reference="reference" in recipe.algorithm.needs,
        batch_tokens=recipe.model.batch_tokens,
        row_tokens=recipe.model.batch_tokens,
        sharding=Fsdp("cpu") if ranks > 1 else None,
    )
    turns = [
        Turn(str(n), 0, tuple((7 * k + n) % 1000 for k in range(PROMPT)), tuple(range(n, n + ACTION))) for n in range(2)
    ]
    with RankMemory(tensors_of(engine.policy.model)) as memory:
        engine.step(turns, SumOfLogProbs(), normalizer=1.0)
        memory.peak = memory.live
        engine.step(turns, SumOfLogProbs(), normalizer=1.0)
    (Path(folder) / str(rank)).write_text(str(memory.peak))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="Number of times that variants take turns.")
    parser.add_argument("--tasks", type=int, default=4, help="Number of tasks, of 8 rollouts each, per iteration.")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    best = measure_iterations(options.rounds, options.tasks)
    base = best[variant(1, 0)]["seconds"]
    rows = [["variant", "time", "ranks compute", "weight sync", "waiting"]]
    shares: dict[str, dict[str, float]] = {}
    for name, iteration in best.items():
        seconds = iteration["seconds"]
        parts = {"compute": iteration["ranks"] / seconds, "sync": iteration["sync"] / seconds}
        parts["waiting"] = 1 - sum(parts.values())
        shares[name] = {"time": seconds / base, **parts}
        rows.append([name, f"{seconds / base:.2f}x", *(f"{part:.0%}" for part in parts.values())])
    table(rows)
    memory = [row for size in ("deep", "wide") for row in measure_memory(size)]
    print()
    table(
        [
            ["model", "ranks", "predicted / counted"],
            *([row["model"], str(row["ranks"]), f"{row['predicted'] / row['counted']:.2f}"] for row in memory),
        ]
    )
    results = {
        "machine": {**machine(), "shared": True},
        "rounds": options.rounds,
        "tasks": options.tasks,
        "seconds": best,
        "ratios": shares,
        "memory": memory,
    }
    write_results("cluster", results)


if __name__ == "__main__":
    main()
