"""A smoke test of a model: load it, generate an answer, measure the speed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from seeupo.inference import make_sampler
from seeupo.models.chat_templates import render
from seeupo.models.loading import load_policy
from seeupo.types import Completion, GenerationRequest, SamplingParameters


@dataclass(frozen=True)
class Answer:
    """A model's answer to a prompt, with the speed of generation."""

    text: str
    tokens: int
    tokens_per_second: float
    parameters: int
    packing: str


def generate_answer(name: str, prompt: str, *, max_tokens: int) -> Answer:
    """Load a model and generate its greedy answer to one user message."""
    policy = load_policy(name)
    message = [{"role": "user", "content": prompt}]
    text: str = prompt  # as it is if the model has no chat template
    if policy.tokenizer.chat_template is not None:
        text = render(policy.tokenizer, policy.tokenizer.get_chat_template(), message)
    ids = tuple(policy.tokenizer.encode(text, add_special_tokens=False))
    sampler = make_sampler(policy, training=False)
    parameters = SamplingParameters(max_tokens=max_tokens, top_k=1)
    sampler.submit(GenerationRequest(id="answer", prompt_ids=ids, seed=0, parameters=parameters))
    started, finished = time.perf_counter(), list[Completion]()
    while not finished:
        finished = sampler.poll()
    seconds = time.perf_counter() - started
    return Answer(
        text=str(policy.tokenizer.decode(list(finished[0].ids), skip_special_tokens=True)).strip(),
        tokens=len(finished[0].ids),
        tokens_per_second=len(finished[0].ids) / seconds,
        parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
        packing=policy.packing,
    )
