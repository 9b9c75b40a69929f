"""LoRA adapters per turn or role on the same base model: which one acts in a turn, and the folder of such a policy.

turn_adapters.json     number of adapters, turns per virtual agent, roles that have them, name of the base model
turn_1/ ... turn_N/    an adapter folder of peft each; those of roles are role_NAME/
base/                  the base model, unless it has a name
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.config.model_settings import LoraSettings, are_agent_roles
from seeupo.errors import ModelError
from seeupo.models.location import TURN_ADAPTERS, has_turn_adapters
from seeupo.models.lora.adapter_folders import (
    BASE,
    PREFIX,
    WEIGHTS,
    find_base,
    read_adapter,
    read_settings,
    shown,
    write_base_name,
)

MAX_ADAPTERS = 1000


@dataclass(frozen=True)
class TurnAdapters:
    """The adapters of a model with one per turn or role.

    Attributes:
        turns_per_agent: Number of consecutive turns of a virtual agent, which share an adapter.
        roles: Roles that have the adapters, in their order; empty if turns have them.
    """

    count: int
    turns_per_agent: int = 1
    roles: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, lora: LoraSettings) -> TurnAdapters:
        assert lora.adapters is not None
        return cls(lora.adapters, lora.turns_per_agent, lora.per_role)

    @property
    def names(self) -> tuple[str, ...]:
        if self.roles:
            return tuple(f"role_{role}" for role in self.roles)
        return tuple(f"turn_{number}" for number in range(1, self.count + 1))

    def of_turn(self, index: int | None, agent_role: str = "") -> int:
        """Return the adapter, from 0, of a turn: of its role or its virtual agent; later agents share the last one."""
        if self.roles:
            if agent_role not in self.roles:
                raise ModelError(
                    f"a turn of the role {agent_role!r}: expected {' or '.join(self.roles)}, which have adapters. "
                    "Name its role in model.lora.per_role"
                )
            return self.roles.index(agent_role)
        if index is None:
            raise ValueError("a request names no turn; the policy has one adapter per turn. Set agent.")
        return min(index // self.turns_per_agent, self.count - 1)


def set_turn_adapters(model: PreTrainedModel, adapters: TurnAdapters) -> TurnAdapters:
    """Record that a model has one adapter per turn, for engines and samplers that share it."""
    model.turn_adapters = adapters  # type: ignore[assignment]
    return adapters


def turn_adapters(model: PreTrainedModel) -> TurnAdapters | None:
    """Return the adapters of a model with one per turn; None for any other model."""
    adapters = getattr(model, "turn_adapters", None)
    return adapters if isinstance(adapters, TurnAdapters) else None


def add_named(model: PreTrainedModel, config: Any, name: str) -> None:
    """Add an adapter of this name, beside others that the model may have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several adapters are meant here
        model.add_adapter(config, name)


def check_adapted(model: PreTrainedModel) -> None:
    """Raise if something outside the layers is adapted: there, samplers do not apply the adapter of a row's turn."""
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if hasattr(module, "lora_A"):
            raise ValueError(
                "one adapter per turn on the embeddings or the output head: expected linear modules within layers. "
                "Remove embed_tokens and lm_head from the targets"
            )


def activate(model: PreTrainedModel, adapter: int) -> None:
    """Compute with this adapter from now on. All stay trainable: adapters that compute nothing get no gradient."""
    adapters = turn_adapters(model)
    assert adapters is not None
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            layer._active_adapter = adapters.names[adapter]  # `set_adapter` of peft would freeze the others


@torch.no_grad()
def copy_first_adapter(model: PreTrainedModel) -> None:
    """Set all adapters of a model with one per turn to the first; do nothing for any other model."""
    adapters = turn_adapters(model)
    if adapters is None:
        return
    first, *others = adapters.names
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if f".{first}." in name:
            for other in others:
                parameters[name.replace(f".{first}.", f".{other}.")].copy_(parameter)


def write_turn_adapters(
    folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor], *, base: str | None
) -> None:
    """Write the adapters, given by parameter name, and their index; without a name of the base, the folder `base`."""
    adapters = turn_adapters(model)
    assert adapters is not None
    configs: Any = model.peft_config
    for name in adapters.names:
        write_adapter(folder / name, name, weights, configs[name])
        # Within the folder of an adapter, a base model that has no name cannot be referred to.
        write_base_name(folder / name, base)
    index: dict[str, Any] = {"adapters": adapters.count, "turns_per_agent": adapters.turns_per_agent}
    index |= ({"roles": adapters.roles} if adapters.roles else {}) | {"base": base or BASE}
    (folder / TURN_ADAPTERS).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_adapter(folder: Path, name: str, weights: Mapping[str, Tensor], config: Any) -> None:
    """Write the adapter of this name, whose weights are given by parameter name, as a new folder of peft."""
    folder.mkdir()
    matrices = {
        f"{PREFIX}{full.replace(f'.{name}.', '.')}": weight.detach().contiguous()
        for full, weight in weights.items()
        if f".{name}." in full
    }
    save_file(matrices, folder / WEIGHTS, {"format": "pt"})
    config.save_pretrained(folder)


def read_index(folder: Path) -> tuple[TurnAdapters, str]:
    """Return the adapters of a folder with one per turn, and the folder or name of their base model."""
    index = read_settings(folder / TURN_ADAPTERS)
    count, per_agent = index.get("adapters"), index.get("turns_per_agent")
    if type(count) is not int or not 0 < count <= MAX_ADAPTERS or type(per_agent) is not int or per_agent < 1:
        raise ModelError(
            f"{folder / TURN_ADAPTERS} has adapters = {shown(count)}, turns_per_agent = {shown(per_agent)}: expected "
            f"1 to {MAX_ADAPTERS} adapters and a positive number of turns; export it again"
        )
    roles = index.get("roles", [])
    if not isinstance(roles, list) or len(roles) not in (0, count) or not are_agent_roles(roles):
        raise ModelError(
            f"{folder / TURN_ADAPTERS} has roles = {shown(roles)}: expected one per adapter; export it again"
        )
    return TurnAdapters(count, per_agent, tuple(roles)), find_base(folder, index.get("base"), TURN_ADAPTERS, "base")


@torch.no_grad()
def load_turn_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapters of a folder to their base model, in float32, or float64 if the model is."""
    from peft import LoraConfig

    adapters, base = read_index(folder)
    set_turn_adapters(model, adapters)
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    for name in adapters.names:
        if (folder / name).is_symlink():
            raise ModelError(f"{folder / name} is a link; expected an adapter folder")
        adapter = read_adapter(folder / name, base=base)
        config = LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,  # type: ignore[arg-type]
            use_rslora=adapter.rank_stabilized,
            target_modules=list(adapter.layers),
        )
        try:
            add_named(model, config, name)
            for parameter_name, parameter in model.named_parameters():
                if f".{name}." in parameter_name:
                    parameter.data = parameter.data.to(dtype)
            adapter.copy_into(model, name)
            check_adapted(model)
        except (AttributeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{folder / name} does not fit its base model {base}: {error}; use the model it was trained on"
            ) from None


def refuse_training(folder: Path) -> None:
    """Raise if a folder is a policy with one adapter per turn, which can be evaluated and served only."""
    if has_turn_adapters(folder):
        raise ModelError(
            f"{folder} has one adapter per turn or role: expected a model or one adapter to train. Use its base model, "
            f"which {TURN_ADAPTERS} names."
        )
