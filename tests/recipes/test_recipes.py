"""Recipes for GPUs run for one iteration with a tiny model of the same family in the place of the large one."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import seeupo
from seeupo.config.loader import read_recipe, recipe_names
from seeupo.config.model_settings import TinyConfig
from seeupo.envs.install import installed
from seeupo.envs.registry import lookup
from seeupo.models.saving import save_model
from seeupo.models.tiny import tiny_tokenizer
from seeupo.planning.shapes import KNOWN_SHAPES
from seeupo.training.setup import open_pool
from seeupo.types import Message, StepResult, Task

GPU_RECIPES = [name for name in recipe_names() if read_recipe(name).model.name in KNOWN_SHAPES]
PAPER = [name for name in GPU_RECIPES if "14b" in name]
SMALL = {
    "run.epochs": "none",
    "run.iterations": "1",
    "model.device": "cpu",
    "agent.max_tokens": "8",
    "agent.max_turns": "2",
    "agent.max_prompt_tokens": "none",
    "agent.concurrency": "4",
    "collect.tasks": "2",
    "collect.group_size": "4",
    "engine.kind": "local",
    "engine.trainers": "1",
    "engine.address": "none",
    "sampler.kind": "local",
    "sampler.count": "0",
    "evaluation.tasks": "1",
    "evaluation.attempts": "1",
    "evaluation.k": "1",
}


class Parity:
    """Two turns; the score depends on the text, so that the attempts at a task differ."""

    def reset(self, task, *, seed):
        self.texts = []
        return StepResult((Message("user", f"Task {task.id}: write something."),))

    def step(self, text):
        self.texts.append(text)
        return StepResult((Message("user", "Write more."),), terminated=len(self.texts) == 2)

    def score(self):
        return float(sum(map(ord, "".join(self.texts))) % 2)

    def close(self): ...


class ParityFactory:
    splits, make, expert = ("train", "test", "dev"), Parity, lambda self, task: None

    def tasks(self, split):
        return [Task(f"{split}-{number}", split) for number in range(4)]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """Save a tiny model of a hub model's architecture, and return its folder."""

    def save(hub_id: str) -> str:
        tokenizer = tiny_tokenizer(TinyConfig())
        family = KNOWN_SHAPES[hub_id]["model_type"]
        config = AutoConfig.for_model(
            family,
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16384,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
            **({"head_dim": 16} if family == "qwen3" else {}),
        )
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(family)
        save_model(AutoModelForCausalLM.from_config(config), tokenizer, folder)
        return str(folder)

    return save


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_recipe_for_gpus_runs_with_a_tiny_model_of_its_family(name, tiny_folder, tmp_path):
    recipe = read_recipe(name)
    changes = {**SMALL, "model.name": tiny_folder(recipe.model.name)}
    recipe = read_recipe(name, list(changes.items()))
    result = seeupo.train(recipe, run_dir=tmp_path / "run", environment=ParityFactory(), progress=False)
    assert result.summary["iterations"] == 1
    assert result.summary["optimizer_steps"] == 2


@pytest.mark.skipif(not installed(lookup("bfcl")), reason="bfcl is not installed: seeupo envs install bfcl")
def test_bfcl_recipes_train_on_the_first_half_of_the_base_tasks_and_test_on_the_second():
    recipe = read_recipe("qwen3-14b-bfcl")
    with open_pool(recipe) as pool:
        for split, first in ((recipe.environment.train_split, 0), (recipe.environment.test_split, 100)):
            expected = [f"multi_turn_base_{number}" for number in range(first, first + 100)]
            assert [task.id for task in pool.tasks(split)] == expected


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_paper_have_its_settings(name):
    recipe = read_recipe(name)
    appworld = name.endswith("appworld")
    assert recipe.run.epochs == (75 if appworld else 50)
    assert (recipe.optimizer.learning_rate, recipe.optimizer.schedule) == (1e-6, "constant")
    assert (recipe.optimizer.weight_decay, recipe.optimizer.max_grad_norm) == (0.01, 1.0)
    assert (recipe.collect.tasks, recipe.collect.group_size, recipe.collect.reward) == (32, 8, "score")
    algorithm = recipe.algorithm.build()
    assert (algorithm.order, algorithm.normalize, algorithm.clip, algorithm.kl_coef) == (
        "reverse",
        "batch",
        (0.2, 0.2),
        0.002,
    )
    assert (algorithm.epochs, algorithm.steps_per_turn) == (1, 1)
    agent = recipe.agent
    assert (agent.reasoning, agent.max_turns, agent.temperature, agent.max_observation_tokens) == (True, 10, 0.9, 3000)
    assert (agent.max_tokens, agent.max_prompt_tokens) == ((3000, 13000) if appworld else (4000, 14000))
    assert (recipe.evaluation.attempts, recipe.evaluation.k, recipe.evaluation.every) == (4, 4, 5)
    assert recipe.evaluation.tasks is None
    splits = (recipe.environment.train_split, recipe.environment.test_split)
    assert splits == (("train", "dev") if appworld else ("train", "test"))
