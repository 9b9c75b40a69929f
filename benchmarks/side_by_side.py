"""Shared parts of the benchmarks: workers in other processes and environments, machine information, result files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seeupo.utils.cache import cache_folder

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"


NOT_FOR_THIS_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies of peers that are built for another torch, and that they do not need."""


def peer_environment(name: str, *requirements: str) -> Path:
    """Return the Python of a virtual environment with the requirements and our versions of torch and transformers."""
    folder = cache_folder() / "peers" / name
    ready, python = folder / "ready", folder / "bin" / "python"
    if not ready.exists():
        print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        ours = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(("torch==", "transformers=="))]
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *ours[:1]], check=True)  # torch, before anything can ask for another build of it
        subprocess.run([*pip, *ours, *requirements], check=True)
        subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *NOT_FOR_THIS_TORCH], check=True)
        ready.touch()
    return python


class Worker:
    """A script in a separate process that answers each JSON line with another."""

    def __init__(self, script: str, *arguments: str, python: Path | None = None) -> None:
        command = [str(python or sys.executable), str(HERE / "workers" / script), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **message: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"the worker {self.process.args} exited without an answer")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def machine() -> dict[str, Any]:
    """Return information about this machine, including its rate of float32 matrix products."""
    matrix = torch.randn(2048, 2048)
    matrix @ matrix
    best = min(_seconds(matrix) for _ in range(5))
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gflops_of_matrix_products": round(2 * 2048**3 / best / 1e9, 1),
    }


def _seconds(matrix: torch.Tensor) -> float:
    started = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - started


def write_results(name: str, results: dict[str, Any]) -> None:
    path = HERE / "results" / f"{name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {path}")


def table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
