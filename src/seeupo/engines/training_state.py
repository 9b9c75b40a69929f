"""Training state as safetensors files, of one process or one per rank, which any number of ranks can read.

Those of ranks are PyTorch's distributed checkpoint (DCP) in its safetensors form: unlike DCP's own files, nothing in it
is pickled, so a checkpoint from a stranger cannot run code.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

FOLDER = "state"
"""Directory of the files."""
INFO = "engine.json"
"""File with the values that are not tensors."""


def save_state(path: Path, tensors: dict[str, Tensor], info: dict[str, Any], *, rank: int | None) -> None:
    """Write named tensors. All ranks call it together, each with its shards; `rank` is None in a single process."""
    if rank is None:
        (path / FOLDER).mkdir()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / FOLDER / "state.safetensors")
    else:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        save(tensors, storage_writer=HuggingFaceStorageWriter(str(path / FOLDER), save_distributed=True))
    if not rank:
        (path / INFO).write_text(json.dumps(info))


def load_state(path: Path, prepare: Callable[[list[str]], dict[str, Tensor]]) -> dict[str, Any]:
    """Read tensors into the tensors that `prepare` returns for the saved names, and return the other values."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    info: dict[str, Any] = json.loads((path / INFO).read_text())
    reader = HuggingFaceStorageReader(str(path / FOLDER))
    tensors = prepare(sorted(reader.read_metadata().state_dict_metadata))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as intended, in one process
        try:
            load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
        except CheckpointException as error:  # not an Exception
            reason, _ = next(iter(error.failures.values()))
            raise ValueError(f"{path / FOLDER} cannot be read: {reason}") from None
    return info
