"""Find the files of a model: in the catalog, in a folder or on a model hub. Nothing here needs torch."""

from __future__ import annotations

import functools
from pathlib import Path

from seeupo.errors import ModelError, first_line, suggest
from seeupo.models.catalog import CATALOG, downloaded_folder

ADAPTER_CONFIG = "adapter_config.json"
"""File of an adapter folder of peft."""
TURN_ADAPTERS = "turn_adapters.json"
"""File of a policy with one adapter per turn."""
HUB_SECONDS = 10.0
"""Time that the model hub has to answer."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder is an adapter rather than a model."""
    return (folder / ADAPTER_CONFIG).exists()


def has_turn_adapters(folder: Path) -> bool:
    """Return whether a folder is a policy with one adapter per turn."""
    return (folder / TURN_ADAPTERS).is_file()


def locate(name_or_path: str) -> str:
    """Return the folder of a model of the catalog or on this machine, or a name on a model hub as it is."""
    if name_or_path in CATALOG:
        folder = downloaded_folder(name_or_path)
        if folder is None:
            raise ModelError(f"{name_or_path} is not downloaded yet; run: seeupo models fetch {name_or_path}")
        return str(folder)
    path = Path(name_or_path)
    if path.is_dir():
        if is_adapter(path) or has_turn_adapters(path):
            return str(path)
        if not (path / "config.json").exists():
            run = f". The policy of this run is in {path / 'policy'}" if (path / "policy/config.json").exists() else ""
            raise ModelError(f"{path} has no config.json; expected a model folder{run}")
        if not list(path.glob("*.safetensors")):
            raise ModelError(f"{path} has no .safetensors file; other weight formats can run code and are not loaded")
        return str(path)
    if name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise ModelError(f"there is no folder {name_or_path!r}; give a model folder with config.json and .safetensors")
    if name_or_path.count("/") == 1 and not path.exists():
        return _on_hub(name_or_path)
    hint = f"{suggest(name_or_path, ['tiny', *CATALOG])} (or give a model folder, or owner/name on a model hub)"
    raise ModelError(f"unknown model {name_or_path!r}; {hint}")


@functools.cache
def _on_hub(name: str) -> str:
    """Return the name of a model on the hub; the folder of its downloaded copy if the hub does not answer.

    It is asked once: transformers would try to reach it several times for every file.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=HUB_SECONDS)
    except (HFValidationError, RepositoryNotFoundError):
        raise ModelError(
            f"there is no folder {name!r} and no such model on the hub; check the name, or log in if it is private"
        ) from None
    except Exception as error:  # the hub's client raises many types, which differ by its version
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            folder = Path()
        if not list(folder.glob("*.safetensors")):
            raise ModelError(
                f"there is no folder {name!r} and no downloaded model of that name, and the model hub cannot be "
                f"reached ({first_line(error)}); check the name, connect to the hub, or give a model folder"
            ) from None
        return str(folder)
    return name
