"""Single-process engine: a language model, its optimizer, and exact log-probs."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.core.checks import check_count
from seeupo.engines.local_critic import CriticSettings, LocalCritic
from seeupo.engines.optimizer import Optimizer, OptimizerSettings
from seeupo.models.adapter_folders import BASE, Adapter, write_base_name
from seeupo.models.adapters import base_model, merge_adapters, merged_weights
from seeupo.models.batching import PaddedBatch, micro_batches
from seeupo.models.loading import LoadedPolicy
from seeupo.models.logprobs import ActionLogProbs, action_logprobs
from seeupo.models.saving import save_model
from seeupo.models.tree import TreeBatch
from seeupo.types import (
    CriticEngine,
    CriticLoss,
    Objective,
    StepMetrics,
    TrainableEngine,
    Trajectory,
    Turn,
    turns_of,
)

ADAPTERS = "adapters.safetensors"
"""File of the adapters, by parameter name."""
REFERENCE = "reference.safetensors"
"""File of a reference policy that is neither the initial model nor the model without adapters."""
CRITIC = "critic"
"""Directory of the critic."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """LoRA adapters on linear layers (needs the extra 'lora'); all other weights are frozen.

    Attributes:
        rank: Rank of each adapter.
        alpha: Scale of the adapters: their output is multiplied by alpha / rank.
        targets: Names of the adapted layers (`target_modules` of peft).
        seed: Random seed of the initialization.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("rank", self.rank, 1)
        check_count("alpha", self.alpha, 1)


class LocalEngine:
    """Trains a loaded policy in this process.

    Args:
        policy: Model to train, in place: a sampler that shares it needs no copy of the weights.
        optimizer: Optimizer settings of the policy.
        temperature: Sampling temperature; log-probs are those of the distribution at this temperature.
        lora: LoRA adapters to train; None trains all weights, or those that `optimizer.trainable` names.
        critic: Settings of a critic, for algorithms that need values; None for no critic.
        reference: Whether to keep the initial policy for KL terms: a frozen copy, or the model without its adapters.
        batch_tokens: Maximum number of tokens per forward pass.
        row_tokens: Maximum length of a tree-packed row. The default is four times the model's width: attention over a
            row costs as much as its matrix products when the row is about six times as long as the model is wide.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of storing them.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        optimizer: OptimizerSettings,
        *,
        lora: LoraSettings | None = None,
        critic: CriticSettings | None = None,
        temperature: float = 1.0,
        reference: bool = False,
        batch_tokens: int = 4096,
        row_tokens: int | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature = {temperature}: expected a positive number (greedy has no log-probs)")
        check_count("batch_tokens", batch_tokens, 1)
        self.policy, self.settings, self.temperature = policy, optimizer, temperature
        self.batch_tokens = batch_tokens
        self.row_tokens = row_tokens or max(256, 4 * int(policy.model.config.get_text_config().hidden_size))
        self.iteration = 0
        self.lora = lora
        if lora is not None:
            _add_adapters(policy, lora)
        self._reference: PreTrainedModel | None = None
        if reference:
            self.snapshot_reference()
        if gradient_checkpointing:
            policy.model.gradient_checkpointing_enable()
            policy.model.train()  # transformers checkpoints in training mode only; dropout is disabled
        self._critic = LocalCritic(policy.model, critic) if critic is not None else None
        self.set_optimizer(optimizer)

    def set_optimizer(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        self._trained = self._choose_trainable()
        self._optimizer = Optimizer(self._trained, settings)

    def snapshot_reference(self) -> None:
        untrained = self.lora is not None and not any(
            bool(parameter.any()) for name, parameter in self.policy.model.named_parameters() if "lora_B" in name
        )
        # Untrained adapters can be disabled to get the reference; otherwise it needs a copy.
        self._reference = self.policy.model if untrained else _frozen_copy(self.policy.model)

    def reset_critic(self) -> None:
        if self._critic is not None:
            self._critic = LocalCritic(self.policy.model, self._critic.settings)

    def begin_iteration(self, iteration: int) -> None:
        self.iteration = iteration

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        model = self.policy.model
        if policy == "reference":
            if self._reference is None:
                raise ValueError("this engine has no reference policy; create it with reference=True")
            model = self._reference
        results: list[Tensor] = [torch.empty(0)] * len(turns)
        disable = policy == "reference" and model is self.policy.model
        with torch.no_grad(), _adapters_disabled(model) if disable else nullcontext():
            for batch in self._micro_batches(turns):
                action = self._action_logprobs(model, batch)
                lengths = action.mask.sum(1).tolist()
                for member, row, length in zip(batch.members, action.logprobs.cpu(), lengths, strict=True):
                    results[member] = row[:length]
        return results

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        self._optimizer.zero_grad()
        total = 0.0
        for batch in self._micro_batches(turns):
            action = self._action_logprobs(self.policy.model, batch, entropies=objective.needs_entropy)
            values = objective(action.logprobs, action.entropies, [turns[member] for member in batch.members])
            loss = -values.sum() / normalizer
            if loss.requires_grad:
                loss.backward()
            total -= float(loss.detach())
        owner = "the policy" if agent is None else f"turn {agent + 1}"
        metrics = self._optimizer.step(self.iteration, agent, owner=owner)
        return StepMetrics(agent, {**metrics, "objective": total})

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        turns = turns_of(trajectories)
        rows = iter(self._require_critic().values(turns, self._micro_batches))
        results = []
        for trajectory in trajectories:
            values = [next(rows) for _ in trajectory.turns]
            results.append(torch.cat([*(row[:-1] for row in values), values[-1][-1:]]))
        return results

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        critic = self._require_critic()
        metrics = critic.step(turns, loss, self._micro_batches, normalizer=normalizer, iteration=self.iteration)
        return StepMetrics(None, metrics)

    def save(self, path: Path) -> None:
        save_model(self.policy.model, self.policy.tokenizer, path)
        if self.lora is not None:
            save_file({name: p.detach().contiguous() for name, p in self._trained.items()}, path / ADAPTERS)
            write_base_name(path, self.policy.base or BASE)
            if self.policy.base is None:  # nothing else could make the adapters usable
                save_model(base_model(self.policy.model), self.policy.tokenizer, path / BASE)
        if self._reference is not None and self._reference is not self.policy.model:
            reference = self._reference.named_parameters()  # tied weights appear once
            save_file({name: p.detach().contiguous() for name, p in reference}, path / REFERENCE)
        state = {"iteration": self.iteration, "optimizers": self._optimizer.state()}
        if self._critic is not None:
            state["critic"] = self._critic.save(path / CRITIC)
        torch.save(state, path / "optimizer.pt")

    def load(self, path: Path) -> None:
        weights: dict[str, Tensor] = {}
        files = [path / ADAPTERS] if self.lora is not None else sorted(path.glob("model*.safetensors"))
        for file in files:
            if not file.exists():
                raise ValueError(f"{path} has no adapters; expected the checkpoint of an engine with lora")
            weights |= load_file(file)
        expected = self._trained if self.lora is not None else self.policy.model.state_dict()
        # Tied weights are stored once.
        missing = {name for name in expected if name not in weights} - {"lm_head.weight"}
        if missing:
            raise ValueError(f"{path} has no weights for {min(missing)}; expected a checkpoint of this model")
        self.policy.model.load_state_dict(weights, strict=False)
        if (path / REFERENCE).exists():
            self._reference = _frozen_copy(self.policy.model)
            self._reference.load_state_dict(load_file(path / REFERENCE), strict=False)
        saved = torch.load(path / "optimizer.pt", weights_only=True)
        self.iteration = saved["iteration"]
        self._optimizer.load_state(saved["optimizers"])
        if self._critic is not None:
            self._critic.load(path / CRITIC, saved.get("critic", {}))

    def export(self, path: Path) -> None:
        save_model(merge_adapters(self.policy.model), self.policy.tokenizer, path)

    def learning_rate(self, iteration: int) -> float:
        return self.settings.rate_at(iteration)

    def owns(self, model: object) -> bool:
        return model is self.policy.model

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from merged_weights(self.policy.model).items()

    def _micro_batches(self, turns: Sequence[Turn]) -> Iterator[TreeBatch | PaddedBatch]:
        self._check_turns(turns)
        return micro_batches(turns, self.policy.packing, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens)

    def _action_logprobs(
        self, model: PreTrainedModel, batch: TreeBatch | PaddedBatch, *, entropies: bool = False
    ) -> ActionLogProbs:
        return action_logprobs(model, batch, temperature=self.temperature, entropies=entropies)

    def _require_critic(self) -> LocalCritic:
        if self._critic is None:
            raise ValueError("this engine has no critic; create it with critic=CriticSettings()")
        return self._critic

    def _check_turns(self, turns: Sequence[Turn]) -> None:
        """Raise before any computation if the model cannot process a turn."""
        vocab_size = int(self.policy.model.config.get_text_config().vocab_size)
        for turn in turns:
            length = len(turn.prompt_ids) + len(turn.action_ids)
            if length > self.policy.context_length:
                raise ValueError(f"turn {turn.key} has {length} tokens; the context is {self.policy.context_length}")
            highest = max(turn.prompt_ids + turn.action_ids, default=0)
            if highest >= vocab_size:
                raise ValueError(f"turn {turn.key} contains token {highest}; the vocabulary has {vocab_size}")

    def _choose_trainable(self) -> dict[str, torch.nn.Parameter]:
        patterns = [re.compile(pattern) for pattern in self.settings.trainable]
        if self.lora is not None:
            if patterns:
                raise ValueError(f"trainable={self.settings.trainable} and lora exclude each other; remove one")
            patterns = [re.compile("lora_")]
        trained = {}
        for name, parameter in self.policy.model.named_parameters():
            parameter.requires_grad_(not patterns or any(pattern.search(name) for pattern in patterns))
            if parameter.requires_grad:
                trained[name] = parameter
        if not trained:
            names = ", ".join(name for name, _ in list(self.policy.model.named_parameters())[:3])
            raise ValueError(f"trainable={self.settings.trainable} matches no parameter; names look like {names}")
        return trained


def _add_adapters(policy: LoadedPolicy, lora: LoraSettings) -> None:
    """Add the adapters to train: new ones, or the adapter that the policy was loaded with."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("lora needs peft: pip install 'seeupo[lora]'")
    from peft import LoraConfig

    model, targets = policy.model, list(lora.targets)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        model.add_adapter(config)
    config.base_model_name_or_path = None  # with a name, peft looks for the model on the hub in each save
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(model.dtype)
    if policy.adapter is not None:
        _load_adapter(model, policy.adapter, lora)


def _load_adapter(model: PreTrainedModel, adapter: Adapter, lora: LoraSettings) -> None:
    """Set the adapters of a model to those of a folder, which must have the same shape."""
    adapted = {name.partition(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
    same = adapted == adapter.layers.keys() and not adapter.rank_stabilized
    if not same or (adapter.rank, adapter.alpha) != (lora.rank, lora.alpha):
        layers = sorted({name.rpartition(".")[2] for name in adapter.layers})
        raise ValueError(
            f"model.lora has rank {lora.rank}, alpha {lora.alpha} and targets {', '.join(lora.targets)}; the adapter "
            f"{adapter.path} has rank {adapter.rank}, alpha {adapter.alpha:g} and targets {', '.join(layers)}. Use "
            "these to train it further, or leave out model.lora to merge it and train all weights"
        )
    with torch.no_grad():
        for name, matrices in adapter.layers.items():
            for part, matrix in zip(("lora_A", "lora_B"), matrices, strict=True):
                parameter = model.get_parameter(f"{name}.{part}.default.weight")
                if parameter.shape != matrix.shape:
                    raise ValueError(f"{adapter.path} does not fit its base model; use the model it was trained on")
                parameter.copy_(matrix)


@contextmanager
def _adapters_disabled(model: PreTrainedModel) -> Iterator[None]:
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    frozen = copy.deepcopy(model).requires_grad_(False)
    frozen.eval()
    return frozen


if TYPE_CHECKING:
    # Let mypy verify the protocols.
    _trainable: type[TrainableEngine] = LocalEngine
    _with_critic: type[CriticEngine] = LocalEngine
