"""Short tests of training and sampling with a very small model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

from seeupo.engines.cluster.fsdp import Fsdp
from seeupo.engines.local import LocalEngine
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.engines.samplers import local_sampler
from seeupo.engines.sharding import Sharding
from seeupo.models.loading import load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.types import Completion, GenerationRequest, SamplingParameters, Turn

RANKS = 2
SECONDS = 60
TURNS = tuple(Turn(str(number), 0, (1, 2, 3 + number), (4, 5 + number)) for number in range(4))


class LogProbs:
    """An objective: the sum of a turn's log-probs."""

    needs_entropy = False

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        return logprobs_NL.sum(1)


def sampler_gap() -> float:
    """Sample a few tokens and return the largest difference to the trainer's log-probs of them."""
    engine = _engine()
    sampler = local_sampler(engine.policy, training=True)
    prompts = {turn.trajectory: turn.prompt_ids for turn in TURNS}
    for seed, (name, prompt) in enumerate(prompts.items()):
        sampler.submit(
            GenerationRequest(id=name, prompt_ids=prompt, seed=seed, parameters=SamplingParameters(max_tokens=16))
        )
    completions: list[Completion] = []
    while len(completions) < len(prompts):
        completions += sampler.poll()
    turns = [Turn(each.id, 0, prompts[each.id], each.ids) for each in completions]
    computed = engine.logprobs(turns)
    sampled = [torch.tensor(each.logprobs) for each in completions]
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(computed, sampled, strict=True))


def two_rank_gap() -> float:
    """Take an optimizer step on two ranks and return the largest difference of weights to one process."""
    expected = _weights_after_a_step(_engine(), TURNS)
    with tempfile.TemporaryDirectory(prefix="seeupo-doctor-") as folder:
        # A server imports this module once, in seconds, and the ranks are its forks.
        get_context("forkserver").set_forkserver_preload([__name__])
        context = start_processes(_rank, args=(folder,), nprocs=RANKS, join=False, start_method="forkserver")
        deadline = time.monotonic() + SECONDS
        try:
            while not context.join(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the ranks did not finish in {SECONDS} s")
        finally:
            for process in context.processes:
                process.kill()
        found = torch.load(Path(folder) / "weights.pt", weights_only=True)
    return float((found - expected).abs().max())


def _rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=RANKS, timeout=timedelta(seconds=SECONDS)
    )
    weights = _weights_after_a_step(_engine(Fsdp("cpu")), TURNS[number::RANKS])
    if number == 0:
        torch.save(weights, Path(folder) / "weights.pt")
    dist.destroy_process_group()


def _engine(sharding: Sharding | None = None) -> LocalEngine:
    policy = load_policy("tiny", device="cpu", tiny=TinyConfig(width=16, layers=2, heads=2, context=32))
    return LocalEngine(policy, OptimizerSettings(learning_rate=1e-2), sharding=sharding)


def _weights_after_a_step(engine: LocalEngine, turns: Sequence[Turn]) -> Tensor:
    engine.step(turns, LogProbs(), normalizer=len(TURNS))
    return torch.cat([weight.flatten() for _, weight in engine.weights()])
