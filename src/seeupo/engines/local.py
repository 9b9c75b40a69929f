"""The TrainEngine of one process: a language model, its optimizer, and exact log-probs."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.core.checks import check_at_least, check_choice, check_count
from seeupo.models.loading import LoadedPolicy
from seeupo.models.logprobs import ActionLogProbs, padded_logprobs, tree_logprobs
from seeupo.models.tree import pack_batches
from seeupo.types import Objective, Sample, StepMetrics

Schedule = Literal["constant", "linear", "cosine"]
Moments = Literal["shared", "per_agent"]
ADAPTERS = "adapters.safetensors"
"""Where an engine with lora keeps what it has trained, by the names of the parameters."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW and its surroundings.

    Attributes:
        learning_rate: at its highest.
        schedule: over iterations, not over turns: "constant", or down to 0 by "linear" or "cosine" decay.
        warmup: iterations over which the rate first rises.
        iterations: of the whole run; needed to decay.
        beta1: momentum. 0 switches it off: it carries one turn's update into the steps of the next turns, so that turns
            move further than M has recorded.
        moments: "shared" by all turns, or "per_agent": each turn has Adam moments of its own.
        max_grad_norm: gradients are clipped to this norm; None for no clip.
        trainable: regular expressions; a parameter whose name contains none of them is frozen. Empty trains all.
    """

    learning_rate: float = 1e-6
    schedule: Schedule = "constant"
    warmup: int = 0
    iterations: int | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    moments: Moments = "shared"
    max_grad_norm: float | None = 1.0
    trainable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("moments", self.moments, get_args(Moments))
        for name in ("learning_rate", "weight_decay", "eps"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        check_count("warmup", self.warmup, 0)
        if self.max_grad_norm is not None:
            check_at_least("max_grad_norm", self.max_grad_norm, 0)
        if self.schedule != "constant" and self.iterations is None:
            raise ValueError(f"schedule={self.schedule!r} needs the number of iterations to decay over")

    def rate_at(self, iteration: int) -> float:
        """The learning rate of an iteration, counted from 0."""
        if iteration < self.warmup:
            return self.learning_rate * (iteration + 1) / (self.warmup + 1)
        if self.schedule == "constant" or self.iterations is None:
            return self.learning_rate
        done = min(1.0, (iteration - self.warmup) / max(1, self.iterations - self.warmup))
        return self.learning_rate * (1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters on linear layers (needs the extra 'lora'); everything else is frozen.

    Attributes:
        targets: names of the layers that get one.
        seed: of their initialisation.
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
        policy: the model; it is trained in place, so a sampler that shares it always has the newest weights.
        optimizer: how it is trained.
        temperature: that actions are sampled with; log-probs are of that distribution.
        lora: train low-rank adapters only; without them all weights, or those that `optimizer.trainable` names.
        reference: keep the policy as it is now, for KL terms: as a frozen copy, or as the model without its adapters.
        batch_tokens: how many tokens go through the model at once.
        row_tokens: length of a tree-packed row. By default four times the model's width: attention over a row costs as
            much as its matrix products when the row is about six times as long as the model is wide.
        gradient_checkpointing: keep no activations of layers, compute them again in the backward pass.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        optimizer: OptimizerSettings,
        *,
        lora: LoraSettings | None = None,
        temperature: float = 1.0,
        reference: bool = False,
        batch_tokens: int = 4096,
        row_tokens: int | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature is {temperature}; it must be positive, as greedy actions have no log-probs")
        check_count("batch_tokens", batch_tokens, 1)
        self.policy, self.settings, self.temperature = policy, optimizer, temperature
        self.batch_tokens = batch_tokens
        self.row_tokens = row_tokens or max(256, 4 * int(policy.model.config.get_text_config().hidden_size))
        self.iteration = 0
        self.lora = lora
        if lora is not None:
            _add_adapters(policy.model, lora)
        self._reference = policy.model if reference and lora else _frozen_copy(policy.model) if reference else None
        if gradient_checkpointing:
            policy.model.gradient_checkpointing_enable()
            policy.model.train()  # transformers checkpoints in training mode only; dropout is off anyway
        self._trained = self._choose_trainable()
        self._optimizers: dict[int | None, torch.optim.AdamW] = {}

    def start_iteration(self, iteration: int) -> None:
        """Tell the engine which iteration the next steps belong to; it sets the learning rate."""
        self.iteration = iteration

    def logprobs(
        self, samples: Sequence[Sample], *, policy: Literal["current", "reference"] = "current"
    ) -> list[Tensor]:
        model = self.policy.model
        if policy == "reference":
            if self._reference is None:
                raise ValueError("this engine keeps no reference policy; make it with reference=True")
            model = self._reference
        found: list[Tensor] = [torch.empty(0)] * len(samples)
        without_adapters = policy == "reference" and self.lora is not None
        with torch.no_grad(), _disabled(model) if without_adapters else nullcontext():
            for members, action in self._batches(model, samples, entropies=False):
                lengths = action.mask.sum(1).tolist()
                for member, row, length in zip(members, action.logprobs.cpu(), lengths, strict=True):
                    found[member] = row[:length]
        return found

    def step(
        self, samples: Sequence[Sample], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        optimizer = self._optimizer(agent)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for members, action in self._batches(self.policy.model, samples, entropies=objective.needs_entropy):
            values = objective(action.logprobs, action.entropies, [samples[member] for member in members])
            loss = -values.sum() / normalizer
            if loss.requires_grad:
                loss.backward()
            total -= float(loss.detach())
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained.values(), limit))
        if not math.isfinite(norm):
            optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(
                f"the gradient of agent {agent} is {norm}; the weights were left as they are. "
                "A smaller learning rate or a clip on the ratio keeps it finite."
            )
        rate = self.settings.rate_at(self.iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return StepMetrics(agent, {"grad_norm": norm, "objective": total, "learning_rate": rate})

    def save(self, path: Path) -> None:
        """Write the model (or its adapters), tokenizer and optimizer into a folder that transformers can load."""
        self.policy.model.save_pretrained(path)
        if self.lora is not None:
            save_file({name: p.detach().contiguous() for name, p in self._trained.items()}, path / ADAPTERS)
        self.policy.tokenizer.save_pretrained(path)
        moments = {agent: optimizer.state_dict() for agent, optimizer in self._optimizers.items()}
        torch.save({"iteration": self.iteration, "optimizers": moments}, path / "optimizer.pt")

    def load(self, path: Path) -> None:
        """Go back to what `save` wrote; training goes on exactly as it would have."""
        weights: dict[str, Tensor] = {}
        for file in [path / ADAPTERS] if self.lora is not None else sorted(path.glob("*.safetensors")):
            if not file.exists():
                raise ValueError(f"{path} has no adapters; it was not saved by an engine with lora")
            weights |= load_file(file)
        wanted = self._trained if self.lora is not None else self.policy.model.state_dict()
        # Tied weights are stored once.
        missing = {name for name in wanted if name not in weights} - {"lm_head.weight"}
        if missing:
            raise ValueError(f"{path} has no weights for {min(missing)}; it is of another model")
        self.policy.model.load_state_dict(weights, strict=False)
        saved = torch.load(path / "optimizer.pt", weights_only=True)
        self.iteration = saved["iteration"]
        self._optimizers.clear()
        for agent, state in saved["optimizers"].items():
            self._optimizer(agent).load_state_dict(state)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.policy.model.named_parameters():
            yield name, parameter.detach()

    def _batches(
        self, model: PreTrainedModel, samples: Sequence[Sample], *, entropies: bool
    ) -> Iterator[tuple[list[int], ActionLogProbs]]:
        """The samples in micro-batches: their numbers and their log-probs."""
        self._check(samples)
        options = {"temperature": self.temperature, "entropies": entropies}
        if self.policy.packing == "tree":
            for batch in pack_batches(samples, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens):
                yield batch.samples, tree_logprobs(model, batch, **options)  # type: ignore[arg-type]
            return
        lengths = [len(sample.prompt_ids) + len(sample.action_ids) for sample in samples]
        group: list[int] = []
        for member in sorted(range(len(samples)), key=lambda number: -lengths[number]):
            if group and lengths[group[0]] * (len(group) + 1) > self.batch_tokens:
                yield group, padded_logprobs(model, [samples[number] for number in group], **options)  # type: ignore[arg-type]
                group = []
            group.append(member)
        if group:
            yield group, padded_logprobs(model, [samples[number] for number in group], **options)  # type: ignore[arg-type]

    def _check(self, samples: Sequence[Sample]) -> None:
        """Refuse what the model cannot take before any work is done."""
        rows = int(self.policy.model.config.get_text_config().vocab_size)
        for sample in samples:
            length = len(sample.prompt_ids) + len(sample.action_ids)
            if length > self.policy.context_length:
                raise ValueError(
                    f"sample {sample.key} has {length} tokens; the model takes {self.policy.context_length}"
                )
            highest = max(sample.prompt_ids + sample.action_ids, default=0)
            if highest >= rows:
                raise ValueError(f"sample {sample.key} contains token {highest}; the model knows {rows}")

    def _choose_trainable(self) -> dict[str, torch.nn.Parameter]:
        patterns = [re.compile(pattern) for pattern in self.settings.trainable]
        if self.lora is not None:
            if patterns:
                raise ValueError(f"trainable={self.settings.trainable} and lora exclude each other; leave one out")
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

    def _optimizer(self, agent: int | None) -> torch.optim.AdamW:
        key = agent if self.settings.moments == "per_agent" else None
        if key not in self._optimizers:
            parameters = list(self._trained.values())
            groups = [
                {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.settings.weight_decay},
                {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
            ]
            self._optimizers[key] = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=self.settings.learning_rate,
                betas=(self.settings.beta1, self.settings.beta2),
                eps=self.settings.eps,
            )
        return self._optimizers[key]


def _add_adapters(model: PreTrainedModel, lora: LoraSettings) -> None:
    if importlib.util.find_spec("peft") is None:
        raise ValueError("lora needs peft: pip install 'seeupo[lora]'")
    from peft import LoraConfig

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        model.add_adapter(config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(model.dtype)


@contextmanager
def _disabled(model: PreTrainedModel) -> Iterator[None]:
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    frozen = copy.deepcopy(model).requires_grad_(False)
    frozen.eval()
    return frozen
