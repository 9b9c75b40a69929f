"""One adapter per turn in vLLM: its own LoRA support, with new adapters under new names after every sync."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from seeupo.config.model_settings import VLLM_RANKS, LoraSettings
from seeupo.models.lora.turn_adapters import TurnAdapters, write_adapter


class ServedAdapters:
    """The adapters of a policy with one per turn in a vLLM engine.

    vLLM's prefix cache knows an adapter by its name and path, which are new in each sync, so keys and values of one
    adapter are never used with another.
    """

    def __init__(self, lora: LoraSettings) -> None:
        self.lora, self.adapters = lora, TurnAdapters.from_settings(lora)
        self._requests: list[Any] = []
        self._loaded = 0

    def arguments(self) -> dict[str, Any]:
        """Return arguments of vLLM's engine: a slot for each adapter, so that all are used in one batch."""
        rank = next(rank for rank in VLLM_RANKS if rank >= self.lora.rank)
        return {"enable_lora": True, "max_loras": self.adapters.count, "max_lora_rank": rank}

    def load(self, engine: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the adapters by these weights, given by the names of the trainer's parameters."""
        from peft import LoraConfig
        from vllm.lora.request import LoRARequest

        config = LoraConfig(r=self.lora.rank, lora_alpha=self.lora.alpha, target_modules=list(self.lora.targets))
        on_cpu = {name: weight.detach().cpu() for name, weight in weights}
        for request in self._requests:
            engine.remove_lora(request.lora_int_id)
        self._requests = []
        with tempfile.TemporaryDirectory(prefix="seeupo-adapters-") as folder:
            for name in self.adapters.names:
                self._loaded += 1
                path = Path(folder) / name
                write_adapter(path, name, on_cpu, config)
                request = LoRARequest(f"{name}-{self._loaded}", self._loaded, str(path))
                if not engine.add_lora(request):
                    raise RuntimeError(f"vLLM did not load the adapter {name}; expected it after a sync")
                self._requests.append(request)

    def of_turn(self, index: int | None, agent_role: str) -> Any:
        """Return vLLM's request for the adapter of a turn; None before the first sync, when adapters add nothing."""
        adapter = self.adapters.of_turn(index, agent_role)
        return self._requests[adapter] if self._requests else None
