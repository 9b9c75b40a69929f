"""AdamW with clipped gradients and moments shared or per virtual agent, and steps that can be shrunk or undone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.types import AgentId


class ClippedAdamW:
    """AdamW on named parameters, with gradient clipping."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings) -> None:
        if settings.schedule != "constant" and settings.iterations is None:
            raise ValueError(f"schedule={settings.schedule!r} needs the number of iterations to decay over")
        self.parameters, self.settings = dict(parameters), settings
        self.by_agent: dict[AgentId | None, torch.optim.AdamW] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def step(self, iteration: int, agent: AgentId | None, *, owner: str) -> dict[str, float]:
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
            label, parameter, key = name.rsplit("/", 2)
            weight = self.parameters[parameter]
            agent: AgentId = int(label) if label.isdecimal() else label
            state = self._optimizer_for(None if agent == "none" else agent).state[weight]
            state[key] = torch.tensor(0.0) if key == "step" else torch.zeros_like(weight, requires_grad=False)
        return self.tensors()

    def _optimizer_for(self, agent: AgentId | None) -> torch.optim.AdamW:
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


@contextmanager
def shrinkable(parameters: Mapping[str, Tensor]) -> Iterator[Callable[[float], None]]:
    """Keep a copy of the parameters until the context ends, and yield a function that shrinks their change since then.

    `shrink(factor)` sets them to before + factor * (now - before), in place, so that repeated calls multiply their
    factors and no second copy is needed. A factor of 0 restores them exactly, also from values that are not finite.
    """
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def shrink(factor: float) -> None:
        for name, parameter in parameters.items():
            if factor == 0:
                parameter.copy_(before[name])
            else:
                parameter.sub_(before[name]).mul_(factor).add_(before[name])

    yield shrink
