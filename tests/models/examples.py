"""Small random models of the supported families, and turns that share prefixes."""

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

from seeupo.models.precision import use_exact_norms
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


def random_turns(seed: int, count: int = 12) -> list[Turn]:
    """Prompts that branch or are prefixes of one another, actions that agree at first, a duplicate, empty actions."""
    generator = random.Random(seed)
    trunk = [generator.randrange(VOCABULARY) for _ in range(10)]
    turns = []
    for number in range(count):
        prompt = trunk[: generator.randrange(1, 11)] + [generator.randrange(2) for _ in range(generator.randrange(4))]
        action = [generator.randrange(2) for _ in range(generator.randrange(6))]
        turns.append(Turn(str(number), 0, tuple(prompt), tuple(action)))
    turns.append(Turn("twin", 0, turns[0].prompt_ids, turns[0].action_ids))
    return turns


def thought_stripped_trajectory(seed: int = 0, count: int = 4) -> list[Turn]:
    """Turns whose prompts leave out the thoughts of earlier turns: no turn is a prefix of the next prompt."""
    generator = random.Random(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(generator.randrange(VOCABULARY) for _ in range(length))

    history, turns = tokens(8), []
    for index in range(count):
        thought, action, observation = tokens(3), tokens(3), tokens(4)
        turns.append(Turn("stripped", index, history, thought + action))
        history = history + action + observation
    return turns
