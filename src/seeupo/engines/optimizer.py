"""AdamW with a learning rate per iteration, clipped gradients, and moments shared or per virtual agent."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from seeupo.core.checks import OptionError, check_at_least, check_choice, check_count

Schedule = Literal["constant", "linear", "cosine"]
Moments = Literal["shared", "per_agent"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Optimizer settings.

    Attributes:
        learning_rate: Peak learning rate.
        schedule: Learning rate schedule over iterations: "constant", or "linear" or "cosine" decay to 0.
        warmup: Number of iterations of linear warmup.
        iterations: Number of iterations of the whole run; needed to decay.
        beta1: Momentum of AdamW; 0 disables it. Momentum carries one turn's update into the steps of the next turns, so
            the policy moves further than the carried advantage M records.
        beta2: Decay rate of AdamW's second moment.
        eps: Term that AdamW adds to the denominator.
        weight_decay: Weight decay of AdamW; norms and biases are not decayed.
        moments: "shared" by all turns, or "per_agent" for separate Adam moments per turn.
        max_grad_norm: Maximum gradient norm; "none" means no clipping.
        trainable: Regular expressions, each of which matches the name of a parameter; a parameter whose name matches
            none of them is frozen. Empty trains all.
    """

    learning_rate: float = 1e-6
    schedule: Schedule = "constant"
    warmup: int = 0
    iterations: int | None = field(default=None, metadata={"set_by": "run.iterations"})
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
                raise OptionError(name, getattr(self, name), "a number in [0, 1)")
        check_count("warmup", self.warmup, 0)
        if self.max_grad_norm is not None:
            check_at_least("max_grad_norm", self.max_grad_norm, 0)
        for pattern in self.trainable:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError("trainable", pattern, f"a regular expression ({error})") from None

    def rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        if iteration < self.warmup:
            return self.learning_rate * (iteration + 1) / (self.warmup + 1)
        if self.schedule == "constant" or self.iterations is None:
            return self.learning_rate
        done = min(1.0, (iteration - self.warmup) / max(1, self.iterations - self.warmup))
        return self.learning_rate * (1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def trainable_names(patterns: Collection[str], names: Collection[str]) -> set[str]:
    """Return the names of parameters that match one of the patterns; all if there are none.

    Raises:
        ValueError: A pattern matches no name.
    """
    matches = {pattern: {name for name in names if re.search(pattern, name)} for pattern in patterns}
    for pattern, matched in matches.items():
        if not matched:
            examples = ", ".join(list(names)[:3])
            raise ValueError(
                f"optimizer.trainable: {pattern!r} matches no parameter; expected a pattern of names like {examples}"
            )
    return set().union(*matches.values()) if matches else set(names)


class Optimizer:
    """AdamW on named parameters, with gradient clipping."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings) -> None:
        if settings.schedule != "constant" and settings.iterations is None:
            raise ValueError(f"schedule={settings.schedule!r} needs the number of iterations to decay over")
        self.parameters, self.settings = dict(parameters), settings
        self.by_agent: dict[int | None, torch.optim.AdamW] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def step(self, iteration: int, agent: int | None, *, owner: str) -> dict[str, float]:
        """Take a step with the accumulated gradients; raise and keep the weights if they are not finite.

        `owner` names the trained network in the error.
        """
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        clipped = torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit)
        norm = float(clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped)  # of sharded gradients
        if not math.isfinite(norm):
            self.zero_grad()
            raise FloatingPointError(
                f"the gradient norm of {owner} is {norm}; the weights are unchanged. "
                "Reduce the learning rate, or clip the ratio."
            )
        optimizer = self._optimizer_for(agent)
        rate = self.settings.rate_at(iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        torch.autograd.graph.increment_version(self.parameters.values())  # fused kernels do not
        self.zero_grad()
        return {"grad_norm": norm, "learning_rate": rate}

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments as "agent/parameter/moment"; the agent is "none" for shared moments."""
        moments = {}
        for agent, optimizer in self.by_agent.items():
            for name, parameter in self.parameters.items():
                for key, value in optimizer.state.get(parameter, {}).items():
                    moment = f"{'none' if agent is None else agent}/{name}/{key}"
                    moments[moment] = value.reshape(1) if key == "step" else value  # files hold no scalars
        return moments

    def prepare(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Start over with moments 0 of these names, as in `tensors`, and return them to be filled."""
        self.by_agent.clear()
        for name in names:
            agent, parameter, key = name.split("/")
            weight = self.parameters[parameter]
            state = self._optimizer_for(None if agent == "none" else int(agent)).state[weight]
            state[key] = torch.tensor(0.0) if key == "step" else torch.zeros_like(weight, requires_grad=False)
        return self.tensors()

    def _optimizer_for(self, agent: int | None) -> torch.optim.AdamW:
        key = agent if self.settings.moments == "per_agent" else None
        if key not in self.by_agent:
            parameters = list(self.parameters.values())
            groups = [
                {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.settings.weight_decay},
                {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
            ]
            self.by_agent[key] = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=self.settings.learning_rate,
                betas=(self.settings.beta1, self.settings.beta2),
                eps=self.settings.eps,
                # One pass over the weights instead of ten; elsewhere PyTorch's own choice is as fast.
                fused=True if all(parameter.is_cpu for parameter in parameters) else None,
            )
        return self.by_agent[key]
