"""Sampling: decoding at several batch sizes, and a three-turn rollout of groups of 8, ours and Hugging Face `generate`.

Same model (SmolLM2-135M), same prompts, the same number of tokens; nothing ends early on either side.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from side_by_side import machine, table, write_results

from seeupo.engines.local_sampler import LocalSampler
from seeupo.models.catalog import fetch
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.types import Completion, GenerationRequest, SamplingParameters

GROUP, PROMPT, NEW, OBSERVATION, TURNS = 8, 300, 24, 30, 3


def draw(generator: torch.Generator, count: int) -> tuple[int, ...]:
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
    input_ids = torch.tensor(prompts)  # all of one length here, which spares it the padding
    found = policy.model.generate(
        input_ids=input_ids, attention_mask=torch.ones_like(input_ids), do_sample=True, temperature=1.0, top_k=0,
        top_p=1.0, min_new_tokens=new, max_new_tokens=new, pad_token_id=0,
    )  # fmt: skip
    return [tuple(row[input_ids.shape[1] :].tolist()) for row in found]


def endless_sampler(policy: LoadedPolicy) -> LocalSampler:
    sampler = LocalSampler(policy)
    sampler._ends = set()
    return sampler


def decoding_rate(policy: LoadedPolicy, side: str, batch: int) -> float:
    """Tokens per second behind a shared prompt, the time to compute the prompt taken off."""
    prompt = draw(torch.Generator().manual_seed(batch), PROMPT)

    def seconds(new: int) -> float:
        started = time.perf_counter()
        if side == "ours":
            sample_ours(endless_sampler(policy), [prompt] * batch, new=new, turn=0)
        else:
            sample_hugging_face(policy, [prompt] * batch, new=new)
        return time.perf_counter() - started

    return batch * (NEW - 1) / (seconds(NEW) - seconds(1))


def rollout_seconds(policy: LoadedPolicy, side: str, groups: int) -> float:
    generator = torch.Generator().manual_seed(groups)
    histories = [prompt for prompt in (draw(generator, PROMPT) for _ in range(groups)) for _ in range(GROUP)]
    observations = [[draw(generator, OBSERVATION) for _ in histories] for _ in range(TURNS)]
    started = time.perf_counter()
    sampler = endless_sampler(policy)
    for turn in range(TURNS):
        if side == "ours":
            actions = sample_ours(sampler, histories, new=NEW, turn=turn)
        else:
            actions = sample_hugging_face(policy, histories, new=NEW)
        histories = [h + a + o for h, a, o in zip(histories, actions, observations[turn], strict=True)]
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--groups", type=int, default=4, help="groups of 8 in the rollout (default 4)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    policy = load_policy(str(fetch("smollm2-135m", report=print)))
    results: dict[str, Any] = {"machine": machine(), "decoding": {}, "rollout": {}}
    rows = [["what", "ours", "generate", "ratio"]]
    for batch in options.batches:
        best = {"ours": 0.0, "hugging_face": 0.0}
        for _ in range(options.repeats):
            for side, rate in best.items():
                best[side] = max(rate, decoding_rate(policy, side, batch))
        ratio = best["ours"] / best["hugging_face"]
        results["decoding"][str(batch)] = {"tokens_per_second": best, "ratio": ratio}
        cells = [f"{best['ours']:.0f} tokens/s", f"{best['hugging_face']:.0f} tokens/s", f"{ratio:.1f}x"]
        rows.append([f"decoding, batch {batch}", *cells])
    seconds = {"ours": float("inf"), "hugging_face": float("inf")}
    for _ in range(options.repeats):
        for side, fastest in seconds.items():
            seconds[side] = min(fastest, rollout_seconds(policy, side, options.groups))
    ratio = seconds["hugging_face"] / seconds["ours"]
    results["rollout"] = {"groups": options.groups, "turns": TURNS, "seconds": seconds, "ratio": ratio}
    cells = [f"{seconds['ours']:.1f} s", f"{seconds['hugging_face']:.1f} s", f"{ratio:.1f}x"]
    rows.append([f"{TURNS} turns, {options.groups} x {GROUP} rows", *cells])
    table(rows)
    write_results("sampling_speed", results)


if __name__ == "__main__":
    main()
