"""Settings of the sampler: in the trainer's process, or in processes of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from seeupo.core.checks import OptionError, check_choice, check_count

SamplerKind = Literal["local", "vllm"]
Placement = Literal["apart", "shared"]


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """Processes that sample actions.

    Attributes:
        kind: "local" is this library's sampler; "vllm" is vLLM (needs the extra 'vllm' on GPUs).
        count: Number of sampler processes (Ray actors); 0 samples in the trainer's process, which kind = "local" can.
        tensor_parallel: Number of GPUs per vLLM sampler.
        placement: "apart": samplers have GPUs of their own; "shared": they use those of the ranks of a cluster engine,
            and release their memory during updates.
        gpu_memory: Fraction of a GPU's memory that a vLLM sampler uses.
        speculation: With kind = "local", draft several tokens per forward pass from what was sampled before, and keep
            those that sampling one at a time would give.
    """

    kind: SamplerKind = "local"
    count: int = 0
    tensor_parallel: int = 1
    placement: Placement = "apart"
    gpu_memory: float = 0.85
    speculation: bool = True

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(SamplerKind))
        check_choice("placement", self.placement, get_args(Placement))
        check_count("count", self.count, 0)
        check_count("tensor_parallel", self.tensor_parallel, 1)
        if not 0 < self.gpu_memory <= 1:
            raise OptionError("gpu_memory", self.gpu_memory, "a number in (0, 1]")
        if self.kind == "vllm" and self.count == 0:
            raise OptionError("count", self.count, 'at least 1 with kind = "vllm"')
