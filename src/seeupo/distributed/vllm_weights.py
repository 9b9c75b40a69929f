"""A backend of vLLM's weight transfer that reads weights from safetensors files, on any device.

vLLM's own backends need GPUs. This one uses the same interface (init, start, update, finish), so a sampler on a CPU
goes through the same steps as one on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND = "seeupo_files"


@dataclass
class FilesInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on."""


@dataclass
class FilesUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A file with some of the weights, by their Hugging Face names."""

    path: str


class FilesTransfer(WeightTransferEngine[FilesInitInfo, FilesUpdateInfo]):  # type: ignore[misc]
    """Loads weights from files that the trainer wrote."""

    init_info_cls = FilesInitInfo
    update_info_cls = FilesUpdateInfo

    def init_transfer_engine(self, init_info: FilesInitInfo) -> None:
        """Do nothing: files need no connection."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FilesUpdateInfo) -> None:
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        repack_output_head(self.model)

    def shutdown(self) -> None:
        """Do nothing: files need no connection."""


def repack_output_head(model: Any) -> None:
    """Rebuild the packed copy of an output head that is tied to the embeddings.

    On CPUs vLLM 0.32 multiplies with packed copies of the weights. Reloading renews them, except the copy of a tied
    head, which would keep using the old embeddings.
    """
    head: Any = getattr(model, "lm_head", None)
    process = getattr(getattr(head, "quant_method", None), "process_weights_after_loading", None)
    if process is not None and head.weight.device.type == "cpu":
        process(head)


class WorkerExtension:
    """Named to vLLM so that all of its worker processes import this module, which registers the backend there."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FilesTransfer)
