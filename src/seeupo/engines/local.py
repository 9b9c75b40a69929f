"""Single-process engine: a language model, its optimizer, and exact log-probs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings, trainable_names
from seeupo.engines.batches import TRUNK_BYTES, Batches
from seeupo.engines.local_critic import LocalCritic
from seeupo.engines.optimizer import ClippedAdamW, shrinkable
from seeupo.engines.reference_policy import ReferencePolicy, fill
from seeupo.engines.sharding import Sharding, SingleProcess
from seeupo.engines.training_state import load_state, save_state
from seeupo.models.loading import LoadedPolicy
from seeupo.models.logprobs import ActionLogProbs, action_logprobs
from seeupo.models.lora.adapter_folders import BASE, write_base_name
from seeupo.models.lora.adapters import (
    ADAPTED,
    add_adapters,
    base_weights,
    is_adapter,
    merged_weights,
    plain_model,
)
from seeupo.models.lora.turn_adapters import activate, copy_first_adapter, turn_adapters, write_turn_adapters
from seeupo.models.packing.batching import PaddedBatch
from seeupo.models.packing.tree import TreeBatch
from seeupo.models.packing.tree_layers import FAMILIES
from seeupo.models.saving import save_model
from seeupo.models.scope import ModelScope
from seeupo.protocols import Capability, CriticEngine, CriticLoss, Objective, TrainableEngine
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn, number_of_tokens, turns_of
from seeupo.utils.option_checks import check_count

POLICY = "policy/"
"""Prefix of the policy's weights in a checkpoint."""


class LocalEngine:
    """Trains a loaded policy in this process; `TrainableEngine` and `CriticEngine` explain its methods.

    Args:
        policy: Model to train, in place: a sampler that shares it needs no copy of the weights.
        optimizer: Optimizer settings of the policy.
        temperature: Sampling temperature; log-probs are taken at this temperature.
        lora: LoRA adapters to train; None trains all weights, or those that `optimizer.trainable` names.
        critic: Settings of a critic, for algorithms that need values; None for no critic.
        reference: Whether to keep the initial policy for KL terms: a frozen copy, or the model without its adapters.
        reference_dtype: Data type of that copy; None for the data type of the policy's weights.
        batch_tokens: Maximum number of tokens per forward pass.
        row_tokens: Maximum length of a tree-packed row. The default is four times the model's width: attention over a
            row costs as much as its matrix products when the row is about six times as long as the model is wide.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of storing them.
        trunk_bytes: Maximum size of the hidden states that are kept during an iteration if the lower layers are not
            trained, so that these are computed once; 0 keeps none.
        sharding: Distribution of the weights over ranks, each of which has an engine for its part of the turns.
        weights: Weights by name for a model on the meta device, which is filled after it was sharded.
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
        reference_dtype: torch.dtype | None = None,
        batch_tokens: int = 4096,
        row_tokens: int | None = None,
        gradient_checkpointing: bool = False,
        trunk_bytes: int = TRUNK_BYTES,
        sharding: Sharding | None = None,
        weights: Iterable[tuple[str, Tensor]] = (),
    ) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature = {temperature}: expected a positive number (greedy has no log-probs)")
        check_count("batch_tokens", batch_tokens, 1)
        check_count("trunk_bytes", trunk_bytes, 0)
        self.policy = policy
        self.temperature = temperature
        self.lora = lora
        self.sharding = sharding or SingleProcess()
        self.row_tokens = row_tokens or max(256, 4 * int(policy.model.config.get_text_config().hidden_size))
        self.iteration = 0
        self.tokens = 0
        if gradient_checkpointing:
            policy.model.gradient_checkpointing_enable()
            policy.model.train()  # transformers checkpoints in training mode only; dropout is disabled
        self._scope = ModelScope(policy.model)
        self._batches = Batches(
            policy,
            self._scope,
            self.sharding,
            row_tokens=self.row_tokens,
            batch_tokens=batch_tokens,
            trunk_bytes=trunk_bytes,
        )
        self._critic = LocalCritic(policy, critic, self.sharding, self._batches) if critic is not None else None
        if lora is not None:
            add_adapters(policy.model, lora, policy.adapter)
        self._adapters = turn_adapters(policy.model)
        kind = policy.model.config.get_text_config().model_type
        if self._adapters is not None and kind not in FAMILIES:
            raise ValueError(
                f"lora.per_turn or per_role with model type {kind!r}: expected {', '.join(FAMILIES)}; leave it out"
            )
        self._reference = (
            ReferencePolicy(policy.model, adapters=lora is not None, dtype=reference_dtype) if reference else None
        )
        self.sharding.shard(self._scope)
        if self._reference is not None and self._reference.copy is not None:
            self.sharding.shard(self._reference.copy)
        if self._critic is not None:
            self._critic.shard()
        self._load_weights(weights)
        if self._reference is not None:
            self._reference.snapshot()
        self.reset_critic()
        self.set_optimizer(optimizer)

    def _load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        model, parameters = self.policy.model, dict(self.policy.model.named_parameters())
        names = {name.replace(ADAPTED, "."): name for name in parameters}
        parts = {names[name]: self.sharding.part(weight, parameters[names[name]]) for name, weight in weights}
        fill(model, parts)

    def set_optimizer(self, settings: OptimizerSettings) -> None:
        """Continue with other settings and fresh moments, as after a warm start."""
        self.settings = settings
        self._trained = self._choose_trainable()
        self._optimizer = ClippedAdamW(self._trained, settings)
        self._batches.reset(self._trained.values())

    def snapshot_reference(self) -> None:
        """Make the current policy the reference policy."""
        self._require_reference().snapshot()
        self._batches.reset(self._trained.values())

    def reset_critic(self) -> None:
        """Make a new critic from the current policy; without a critic nothing happens."""
        if self._critic is not None:
            if self._adapters is not None:
                activate(self.policy.model, 0)  # at the start of training, all adapters are equal
            self._critic.restart(merged_weights(self.policy.model, self.sharding.full))

    def copy_first_adapter(self) -> None:
        copy_first_adapter(self.policy.model)

    def begin_iteration(self, iteration: int) -> None:
        """Set the iteration, from 0, that the next steps belong to; it determines the learning rate."""
        self.iteration = iteration
        self._batches.release()

    @property
    def capabilities(self) -> frozenset[Capability]:
        optional: dict[Capability, object] = {"critic": self._critic, "trunk": self._batches.trunk}
        return frozenset({"shrink", *(name for name, part in optional.items() if part is not None)})

    def keep_trunk(self, turns: Sequence[Turn]) -> None:
        self._batches.keep(turns)

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        """Return log-probs [len(action)] of each turn's action tokens, without gradient, on the CPU."""
        self.tokens += number_of_tokens(turns)
        results: list[Tensor] = [torch.empty(0)] * len(turns)
        with torch.no_grad(), self._scope_of(policy) as scope:
            for batch, real in self._batches.iterate(turns, scope):
                logprobs, _, mask = self._action_logprobs(scope, batch)
                if real:
                    for member, row, length in zip(batch.members, logprobs.cpu(), mask.sum(1).tolist(), strict=True):
                        results[member] = row[:length]
        return results

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        """Take one optimizer step up the gradient of sum(objective) / normalizer; `agent` is the turn, if it is one."""
        self.tokens += number_of_tokens(turns)
        self._optimizer.zero_grad()
        total = 0.0
        for batch, real in self._batches.iterate(turns, self._scope):
            logprobs, entropies, _ = self._action_logprobs(self._scope, batch, entropies=objective.needs_entropy)
            if real:
                value = objective(logprobs, entropies, [turns[member] for member in batch.members]).sum() / normalizer
                total += float(value.detach())
            if not real or (self.sharding.ranks > 1 and not value.requires_grad):
                value = 0 * logprobs.sum()  # every rank takes part in every backward pass
            if value.requires_grad:
                (-self.sharding.ranks * value).backward()  # the gradients of ranks are averaged
        owner = f"turn {agent + 1}" if isinstance(agent, int) else agent or "the policy"
        metrics = self._optimizer.step(self.iteration, agent, owner=owner)
        return StepMetrics(agent, {**metrics, "objective": total})

    def shrinkable_steps(self) -> AbstractContextManager[Callable[[float], None]]:
        return shrinkable(self._trained)

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        return trajectory_values(trajectories, self.turn_values(turns_of(trajectories)))

    def turn_values(self, turns: Sequence[Turn]) -> list[Tensor]:
        """Return values [len(action) + 1] per turn: before each token of the action and after the last."""
        return self._require_critic().values(turns)

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        critic = self._require_critic()
        metrics = critic.step(turns, loss, normalizer=normalizer, iteration=self.iteration)
        return StepMetrics(None, metrics)

    def save(self, path: Path) -> None:
        """Write everything that training needs to continue into a folder."""
        tensors = self._state_tensors()
        rank = None if isinstance(self.sharding, SingleProcess) else self.sharding.rank
        if rank is not None:
            self.export(path)  # so that a checkpoint is a model folder, whichever engine wrote it
        else:
            self._write_policy(path)
            if self.lora is None:  # the weights are in the model's own files
                tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(POLICY)}
        for prefix, optimizer in self._optimizers().items():
            tensors |= {prefix + name: tensor for name, tensor in optimizer.tensors().items()}
        save_state(path, tensors, {"iteration": self.iteration}, rank=rank)

    def _write_policy(self, path: Path) -> None:
        """Write the policy as a folder that transformers or peft can load; adapters are not merged."""
        model, tokenizer = self.policy.model, self.policy.tokenizer
        base = self.policy.base
        if self._adapters is not None:
            write_turn_adapters(path, model, self._trained, base=base)
            tokenizer.save_pretrained(path)
        else:
            save_model(model, tokenizer, path)
            if self.lora is not None:
                write_base_name(path, base or BASE)
        if self.lora is not None and base is None:  # nothing else could make the adapters usable
            save_model(plain_model(model, base_weights(model)), tokenizer, path / BASE)

    def load(self, path: Path) -> None:
        """Continue from a folder that `save` wrote."""

        def prepare(names: list[str]) -> dict[str, Tensor]:
            """Return the tensors of the engine that the checkpoint fills; it must have all of them."""
            tensors = self._state_tensors()
            if self.lora is None and not any(name.startswith(POLICY) for name in names):
                self._load_weights(self._model_files(path))
                tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(POLICY)}
            if missing := tensors.keys() - set(names):
                raise ValueError(f"{path} has no {min(missing)}; expected a checkpoint of this model and settings")
            for prefix, optimizer in self._optimizers().items():
                moments = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
                tensors |= {prefix + name: tensor for name, tensor in optimizer.prepare(moments).items()}
            return tensors

        self.iteration = load_state(path, prepare)["iteration"]
        self._batches.reset(self._trained.values())

    def _model_files(self, path: Path) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a model folder, which must have all that this model has."""
        weights: dict[str, Tensor] = {}
        for file in sorted(path.glob("model*.safetensors")):
            weights |= load_file(file)
        for name, _ in self.policy.model.named_parameters():
            if name not in weights:
                raise ValueError(f"{path} has no weights for {name}; expected a checkpoint of this model")
            yield name, weights[name]

    def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder, adapters merged."""
        model, full = self.policy.model, self.sharding.full
        weights = self.first_rank_copy(self.weights())
        base = {}
        if self._adapters is not None:
            base = self.first_rank_copy((name, full(weight)) for name, weight in base_weights(model).items())
        if self.sharding.rank != 0:
            return
        if self._adapters is None:
            save_model(plain_model(model, weights), self.policy.tokenizer, path)
        else:
            write_turn_adapters(path, model, weights, base=None)
            self.policy.tokenizer.save_pretrained(path)
            save_model(plain_model(model, base), self.policy.tokenizer, path / BASE)

    def first_rank_copy(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return weights, which all ranks gather one after another, in the memory of rank 0."""
        return {name: weight.cpu() for name, weight in weights if self.sharding.rank == 0}

    def learning_rate(self, iteration: int) -> float:
        return self.settings.rate_at(iteration)

    def owns(self, model: object) -> bool:
        return model is self.policy.model

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        if self._adapters is None:
            return merged_weights(self.policy.model, self.sharding.full)
        adapters = ((name, weight) for name, weight in self.policy.model.named_parameters() if is_adapter(name))
        return ((name, self.sharding.full(weight.detach())) for name, weight in adapters)

    def _optimizers(self) -> dict[str, ClippedAdamW]:
        """Return the optimizers by the prefix of their moments in a checkpoint."""
        critic = {} if self._critic is None else {"critic_moments/": self._critic.optimizer}
        return {"moments/": self._optimizer, **critic}

    def _state_tensors(self) -> dict[str, Tensor]:
        """Return the weights that a checkpoint holds: trained ones, the reference policy's and the critic's."""
        trained = self._trained if self.lora is not None else dict(self.policy.model.named_parameters())
        tensors = {f"{POLICY}{name}": parameter.detach() for name, parameter in trained.items()}
        if self._reference is not None:
            tensors |= {f"reference/{name}": tensor for name, tensor in self._reference.tensors().items()}
        if self._critic is not None:
            tensors |= {f"critic/{name}": parameter.detach() for name, parameter in self._critic.trained.items()}
        return tensors

    def _scope_of(self, policy: Literal["current", "reference"]) -> AbstractContextManager[ModelScope]:
        return nullcontext(self._scope) if policy == "current" else self._require_reference().active(self._scope)

    def _require_reference(self) -> ReferencePolicy:
        if self._reference is None:
            raise ValueError("this engine has no reference policy; create it with reference=True")
        return self._reference

    def _action_logprobs(
        self, scope: ModelScope, batch: TreeBatch | PaddedBatch, *, entropies: bool = False
    ) -> ActionLogProbs:
        compute = partial(action_logprobs, batch=batch, temperature=self.temperature, entropies=entropies)
        with self.policy.autocast():
            return scope(compute)  # type: ignore[no-any-return]

    def _require_critic(self) -> LocalCritic:
        if self._critic is None:
            raise ValueError("this engine has no critic; create it with critic=CriticSettings()")
        return self._critic

    def _choose_trainable(self) -> dict[str, torch.nn.Parameter]:
        if self.lora is not None and self.settings.trainable:
            raise ValueError(f"trainable={self.settings.trainable} and lora exclude each other; remove one")
        parameters = dict(self.policy.model.named_parameters())
        trained = trainable_names(self.settings.trainable if self.lora is None else ("lora_",), list(parameters))
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
        return {name: parameter for name, parameter in parameters.items() if name in trained}


def trajectory_values(trajectories: Sequence[Trajectory], turn_values: Sequence[Tensor]) -> list[Tensor]:
    """Return values [A + 1] per trajectory of A action tokens from the values of its turns."""
    rows = iter(turn_values)
    results = []
    for trajectory in trajectories:
        values = [next(rows) for _ in trajectory.turns]
        results.append(torch.cat([*(row[:-1] for row in values), values[-1][-1:]]))
    return results


if TYPE_CHECKING:
    # Let mypy verify the protocols.
    _trainable: type[TrainableEngine] = LocalEngine
    _with_critic: type[CriticEngine] = LocalEngine
