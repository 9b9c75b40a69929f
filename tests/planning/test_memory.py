"""The memory model against counted tensors: an update of small models with several micro-batches."""

from dataclasses import replace

import pytest
import torch

from engines.examples import TOKENIZER
from models.examples import FAMILIES
from planning.peak_memory import PeakMemory, tensors_of
from seeupo.algorithms import SeeUPO
from seeupo.config.model_settings import LoraSettings, ModelSettings
from seeupo.config.schema import AgentSettings, Recipe
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import LoadedPolicy
from seeupo.planning.memory import training_memory
from seeupo.planning.stored_models import shape_of_model
from seeupo.types import Turn

SIZES = {
    "deep": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6},
    "wide": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
}
ROWS, PROMPT, ACTION = 2, 240, 60
CASES = {
    "full": ModelSettings(),
    "lora": ModelSettings(lora=LoraSettings(rank=8)),
    "checkpointing": ModelSettings(gradient_checkpointing=True),
    "lora and checkpointing": ModelSettings(lora=LoraSettings(rank=8), gradient_checkpointing=True),
}


class SumOfLogProbs:
    needs_entropy = False

    def __call__(self, logprobs_NL, entropies_NL, turns):
        return logprobs_NL.sum(1)


def small(family: str, size: str):
    torch.manual_seed(0)
    config, model = FAMILIES[family]
    extra = {"head_dim": 16} if family == "qwen3" else {}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return model(config(vocab_size=1000, max_position_embeddings=2048, **SIZES[size], **heads, **extra)).eval()


def recipe_for(model: ModelSettings, **sections) -> Recipe:
    agent = AgentSettings(max_prompt_tokens=PROMPT, max_tokens=ACTION, max_turns=1)
    return Recipe(model=replace(model, batch_tokens=PROMPT + ACTION), agent=agent, **sections)


def measured(model, recipe: Recipe) -> int:
    """Return the peak of the second update, in which the optimizer has its state, in bytes."""
    engine = LocalEngine(
        LoadedPolicy(model, TOKENIZER, "tree"),
        recipe.optimizer,
        lora=recipe.model.lora,
        reference="reference" in recipe.algorithm.needs,
        batch_tokens=recipe.model.batch_tokens,
        row_tokens=recipe.model.batch_tokens,
        gradient_checkpointing=recipe.model.gradient_checkpointing,
    )
    existing = tensors_of(engine.policy.model)
    if engine._reference is not None:
        existing += engine._reference.tensors().values()
    # Different first tokens, so that no row is shared and each turn is a micro-batch.
    turns = [
        Turn(str(n), 0, tuple((7 * k + n) % 1000 for k in range(PROMPT)), tuple(range(n, n + ACTION)))
        for n in range(ROWS)
    ]
    with PeakMemory(existing) as memory:
        engine.step(turns, SumOfLogProbs(), normalizer=1.0)
        memory.peak = memory.live
        engine.step(turns, SumOfLogProbs(), normalizer=1.0)
    return memory.peak


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_an_update_is_predicted_within_15_percent(case, family, size):
    model, recipe = small(family, size), recipe_for(CASES[case])
    predicted = training_memory(shape_of_model(model, "test"), recipe).peak
    found = measured(model, recipe)
    print(f"{case} {family} {size}: {predicted / 1e6:.1f} MB predicted, {found / 1e6:.1f} MB counted")
    assert predicted == pytest.approx(found, rel=0.15)


def test_the_reference_policy_is_counted():
    model, recipe = small("llama", "wide"), recipe_for(CASES["full"], algorithm=SeeUPO(kl_coef=0.1))
    assert training_memory(shape_of_model(model, "test"), recipe).peak == pytest.approx(
        measured(model, recipe), rel=0.15
    )
