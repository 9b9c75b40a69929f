"""Engines and samplers on small random models, with turns to train on and requests to sample."""

from __future__ import annotations

import torch

from models.examples import small_model
from seeupo.algorithms.common.batch import logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import LoadedPolicy
from seeupo.models.tiny import tiny_tokenizer
from seeupo.protocols import Sampler
from seeupo.types import Completion, GenerationRequest, SamplingParameters, Trajectory, Turn

TOKENIZER = tiny_tokenizer(TinyConfig())


def engine(*, packing="tree", dtype=torch.float64, batch_tokens=64, family="llama", seed=0, **options) -> LocalEngine:
    settings = {name: options.pop(name) for name in list(options) if hasattr(OptimizerSettings, name)}
    policy = LoadedPolicy(small_model(family, dtype, seed), TOKENIZER, packing)
    return LocalEngine(
        policy,
        OptimizerSettings(**{"learning_rate": 1e-2, **settings}),
        **{"batch_tokens": batch_tokens, "row_tokens": 32, **options},
    )


def objective_for(engine: LocalEngine, turns, **options) -> SequenceObjective:
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(len(turns), generator=generator).tolist()
    return SequenceObjective(
        old=logprobs_by_key(engine, turns),
        advantages={turn.key: weight for turn, weight in zip(turns, weights, strict=True)},
        multiplicities={turn.trajectory: 1.0 for turn in turns},
        **options,
    )


def weights(engine: LocalEngine) -> torch.Tensor:
    return torch.cat([weight.flatten().clone() for _, weight in engine.weights()])


def trajectories(count: int = 3, seed: int = 0) -> list[Trajectory]:
    """Two groups of four; each turn's prompt contains the turns before it and an observation."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 40, (length,), generator=generator).tolist())

    made = []
    for group in range(2):
        task = tokens(12)
        for member in range(4):
            history, turns = task, []
            for index in range(count - (member == 3)):
                action = tokens(3 + member)
                turns.append(Turn(f"{group}.{member}", index, history, action))
                history = history + action + tokens(4)
            reward = float(torch.rand((), generator=generator))
            made.append(Trajectory(f"{group}.{member}", str(group), str(group), tuple(turns), reward))
    return made


END = 39
"""End-of-turn token of the small models, whose vocabulary is not the tokenizer's."""


def policy(family="llama", dtype=torch.float64, seed=0) -> LoadedPolicy:
    model = small_model(family, dtype, seed)
    model.generation_config.eos_token_id = END
    return LoadedPolicy(model, TOKENIZER, "tree")


def request(name: str, prompt, seed=0, *, episode=None, **parameters) -> GenerationRequest:
    sampling = SamplingParameters(**{"max_tokens": 12, "temperature": 0.8, **parameters})
    return GenerationRequest(id=name, prompt_ids=tuple(prompt), seed=seed, parameters=sampling, episode=episode)


def run(sampler: Sampler, requests) -> dict[str, Completion]:
    completions: dict[str, Completion] = {}
    for request in requests:
        sampler.submit(request)
    for _ in range(10_000):
        for completion in sampler.poll():
            assert completion.id not in completions
            completions[completion.id] = completion
        if len(completions) == len(requests):
            return completions
    raise AssertionError("the sampler did not finish")


def many_requests(count=24) -> list[GenerationRequest]:
    """Six prompts of different lengths, four requests each."""
    return [request(str(n), range(1, 4 + 2 * (n % 6)), seed=n) for n in range(count)]


def check_cancel(sampler: Sampler, requests, expected: dict[str, Completion], polls: int) -> None:
    """Check that some of the requests can be canceled after some polls, and then all: the others are not affected."""
    for request in requests:
        sampler.submit(request)
    early = [completion for _ in range(polls) for completion in sampler.poll()]
    completions = {completion.id: completion for completion in early}
    cancelled = [request.id for request in requests[::3] if request.id not in completions]
    assert cancelled
    sampler.cancel([*cancelled, *completions, "unknown"])
    for _ in range(10_000):
        completions |= {completion.id: completion for completion in sampler.poll()}
        if len(completions) == len(requests) - len(cancelled):
            break
    assert completions.keys() == {request.id for request in requests} - set(cancelled)
    assert {name: completion.ids for name, completion in completions.items()} == {
        name: expected[name].ids for name in completions
    }
    assert sampler.poll() == []
    for request in requests:
        sampler.submit(request)
    for _ in range(polls):
        sampler.poll()
    sampler.cancel([request.id for request in requests])
    sampler.release()  # raises unless it is idle
    assert sampler.poll() == []
