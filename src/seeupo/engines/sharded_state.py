"""Training state as safetensors files, one per rank, which any number of ranks can read.

It is PyTorch's distributed checkpoint (DCP) in its safetensors form: unlike DCP's own files, nothing in it is pickled,
so a checkpoint from a stranger cannot run code.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

FOLDER = "sharded"
"""Directory of the files."""
INFO = "engine.json"
"""File with the values that are not tensors."""


def is_sharded(path: Path) -> bool:
    """Return whether a checkpoint was written by ranks."""
    return (path / INFO).exists()


def save_sharded(path: Path, tensors: dict[str, Tensor], info: dict[str, Any], *, rank: int) -> None:
    """Write named tensors; all ranks call it together."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(tensors, storage_writer=HuggingFaceStorageWriter(str(path / FOLDER), save_distributed=True))
    if rank == 0:
        (path / INFO).write_text(json.dumps(info))


def load_sharded(path: Path, prepare: Callable[[Iterable[str]], dict[str, Tensor]]) -> dict[str, Any]:
    """Read tensors into those that `prepare` returns for the saved names, and return the other values."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path / FOLDER))
    tensors = prepare(reader.read_metadata().state_dict_metadata)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as intended, in one process
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    info: dict[str, Any] = json.loads((path / INFO).read_text())
    return info
