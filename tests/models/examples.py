"""Small random models of the families that are supported, and turns that share prefixes in every way."""

from __future__ import annotations

import random

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from seeupo.models.exact_norm import use_exact_norms
from seeupo.types import Turn

VOCABULARY = 40
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def small_model(family: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config, model = FAMILIES[family]
    extra = {"head_dim": 8} if family == "qwen3" else {}
    made = model(config(**SHAPE, **extra)).to(dtype).eval()
    if dtype == torch.float64:
        use_exact_norms(made)
    return made


def random_samples(seed: int, count: int = 12) -> list[Turn]:
    """Prompts that branch or are prefixes of one another, actions that agree at first, a duplicate, empty actions."""
    draw = random.Random(seed)
    trunk = [draw.randrange(VOCABULARY) for _ in range(10)]
    turns = []
    for number in range(count):
        prompt = trunk[: draw.randrange(1, 11)] + [draw.randrange(2) for _ in range(draw.randrange(4))]
        action = [draw.randrange(2) for _ in range(draw.randrange(6))]
        turns.append(Turn(str(number), 0, tuple(prompt), tuple(action)))
    turns.append(Turn("twin", 0, turns[0].prompt_ids, turns[0].action_ids))
    return turns


def thought_stripped_trajectory(seed: int = 0, turns: int = 4) -> list[Turn]:
    """Turns whose prompts leave out the thoughts of earlier turns: no prompt is a prefix of the next turn."""
    draw = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCABULARY) for _ in range(count))

    history, turns = words(8), []
    for turn in range(turns):
        thought, action, observation = words(3), words(3), words(4)
        turns.append(Turn("stripped", turn, history, thought + action))
        history = history + action + observation
    return turns
