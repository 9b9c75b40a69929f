"""Check what is installed on this machine and whether it works, training and sampling included."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.fsdp import Fsdp
from seeupo.engines.local import LocalEngine
from seeupo.engines.sharding import Sharding
from seeupo.envs.install import installed
from seeupo.envs.pool.sandbox import Bubblewrap, find_bubblewrap
from seeupo.envs.registry import SPECS
from seeupo.errors import first_line
from seeupo.inference import make_sampler
from seeupo.models.loading import load_policy
from seeupo.types import Completion, GenerationRequest, SamplingParameters, Turn
from seeupo.utils.cache import cache_folder
from seeupo.utils.python_process import python_command, safe_environment

GIB = 2**30
IMPORT_SECONDS = 60
MIN_DISK = 1 * GIB
MAX_GAP = 1e-3
"""Largest difference of log-probs or weights in float32 that counts as equal."""
EXTRAS = {
    "ray": ("cluster", "several ranks or sampler processes"),
    "vllm": ("vllm", "sampling with vLLM"),
    "peft": ("lora", "LoRA adapters"),
}
"""Optional packages: the extra that installs each, and its use."""

RANKS = 2
SECONDS = 60
TURNS = tuple(Turn(str(number), 0, (1, 2, 3 + number), (4, 5 + number)) for number in range(4))

Status = Literal["OK", "skipped", "failed"]


@dataclass(frozen=True)
class Check:
    """The result of a check; `fix` says what to do if it failed or was skipped."""

    name: str
    status: Status
    text: str
    fix: str = ""


def run_checks() -> Iterator[Check]:
    """Yield the checks of this machine one by one. Those that start processes run at the same time."""
    with ThreadPoolExecutor(len(EXTRAS) + 1) as background:
        packages = [background.submit(optional_package, package) for package in EXTRAS]
        tests = background.submit(self_tests)
        yield Check(
            "versions",
            "OK",
            f"Python {platform.python_version()}, torch {torch.__version__}, transformers {version('transformers')}",
        )
        yield devices()
        yield from backends()
        for package in packages:
            yield package.result()
        yield sandbox()
        yield environments()
        yield memory()
        yield disk(cache_folder())
        yield from tests.result()


def self_tests() -> list[Check]:
    """Run the tests one after the other: both use the random numbers of this process."""
    return [
        self_test("sampler parity", sampler_gap, "log-probs of sampler and trainer differ by"),
        self_test("two ranks", two_rank_gap, "FSDP2 on two processes; weights differ from one process by"),
    ]


def devices() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if not names:
        return Check("devices", "OK", f"{cores} cores, no GPU")
    try:
        torch.ones(8, device="cuda").sum().item()
    except RuntimeError as error:
        fix = "update the GPU driver, or install the torch build for it (https://pytorch.org)"
        return Check("devices", "failed", f"{names[0]} cannot compute: {first_line(error)}", fix)
    return Check("devices", "OK", f"{cores} cores, {len(names)} x {names[0]}")


def backends() -> Iterator[Check]:
    if not dist.is_available() or not dist.is_gloo_available():
        yield Check("gloo", "failed", "torch has no gloo backend", "install an official build of torch")
    else:
        yield Check("gloo", "OK", "collective operations on CPUs")
    if not torch.cuda.is_available():
        yield Check("nccl", "skipped", "there is no GPU")
    elif dist.is_nccl_available():
        yield Check("nccl", "OK", "collective operations on GPUs")
    else:
        yield Check("nccl", "failed", "torch has no NCCL backend", "install the CUDA build of torch for Linux")


def optional_package(package: str) -> Check:
    """Import a package in a process of its own: a broken one may take the process down."""
    extra, use = EXTRAS[package]
    install = f"pip install 'seeupo[{extra}]'"
    if importlib.util.find_spec(package) is None:
        return Check(package, "skipped", f"not installed; needed for {use}", install)
    program = f"import {package}; print({package}.__version__)"
    try:
        done = subprocess.run(
            python_command("-W", "ignore", "-c", program),
            env=safe_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Check(
            package, "failed", f"its import takes more than {IMPORT_SECONDS} s", f"install it again: {install}"
        )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check(package, "failed", f"cannot be imported: {reason}", f"install it again: {install}")
    return Check(package, "OK", (done.stdout.split() or ["installed"])[-1])


def sandbox() -> Check:
    bubblewrap = find_bubblewrap()
    if isinstance(bubblewrap, Bubblewrap):
        return Check("sandbox", "OK", f"bubblewrap ({bubblewrap.path})")
    if shutil.which("bwrap") is None:
        return Check("sandbox", "skipped", "environments run without a sandbox", bubblewrap)
    return Check("sandbox", "failed", bubblewrap, "allow user namespaces, or run on another machine")


def environments() -> Check:
    ready = [spec.name for spec in SPECS if installed(spec)]
    missing = [spec.name for spec in SPECS if spec.name not in ready]
    fix = f"install others with: seeupo envs install {missing[0]}" if missing else ""
    return Check("environments", "OK", ", ".join(ready), fix)


def memory() -> Check:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (page * os.sysconf(name) / GIB for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    return Check("memory", "OK", f"{total:.1f} GiB, {free:.1f} GiB unused")


def disk(folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < MIN_DISK:
        fix = "free some space, or set SEEUPO_CACHE to a directory on another disk"
        return Check("disk", "failed", f"{free / GIB:.1f} GiB free in {existing}", fix)
    return Check("disk", "OK", f"{free / GIB:.0f} GiB free in {existing}")


def self_test(name: str, measure: Callable[[], float], text: str) -> Check:
    """Run a short test that returns a difference, which must be small."""
    try:
        gap = measure()
    except Exception as error:
        fix = "report it with the output of this command, unless another check above failed"
        return Check(name, "failed", f"{type(error).__name__}: {first_line(error)}", fix)
    if not gap <= MAX_GAP:
        fix = "results here would be wrong: install the versions of constraints.txt and try again"
        return Check(name, "failed", f"{text} {gap:.1e}; at most {MAX_GAP:g} is expected", fix)
    return Check(name, "OK", f"{text} {gap:.1e}")


class LogProbs:
    """An objective: the sum of a turn's log-probs."""

    needs_entropy = False

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        return logprobs_NL.sum(1)


def sampler_gap() -> float:
    """Sample a few tokens and return the largest difference to the trainer's log-probs of them."""
    engine = _engine()
    sampler = make_sampler(engine.policy, training=True)
    prompts = {turn.trajectory: turn.prompt_ids for turn in TURNS}
    for seed, (name, prompt) in enumerate(prompts.items()):
        sampler.submit(
            GenerationRequest(id=name, prompt_ids=prompt, seed=seed, parameters=SamplingParameters(max_tokens=16))
        )
    completions: list[Completion] = []
    while len(completions) < len(prompts):
        completions += sampler.poll()
    turns = [Turn(completion.id, 0, prompts[completion.id], completion.ids) for completion in completions]
    computed = engine.logprobs(turns)
    sampled = [torch.tensor(completion.logprobs) for completion in completions]
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(computed, sampled, strict=True))


def two_rank_gap() -> float:
    """Take an optimizer step on two ranks and return the largest difference of weights to one process."""
    expected = _weights_after_a_step(_engine(), TURNS)
    with tempfile.TemporaryDirectory(prefix="seeupo-doctor-") as folder:
        # A server imports this module once, in seconds, and the ranks are its forks.
        get_context("forkserver").set_forkserver_preload([__name__])
        context = start_processes(_rank, args=(folder,), nprocs=RANKS, join=False, start_method="forkserver")
        deadline = time.monotonic() + SECONDS
        try:
            while not context.join(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the ranks did not finish in {SECONDS} s")
        finally:
            for process in context.processes:
                process.kill()
        weights = torch.load(Path(folder) / "weights.pt", weights_only=True)
    return float((weights - expected).abs().max())


def _rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=number, world_size=RANKS, timeout=timedelta(seconds=SECONDS)
    )
    weights = _weights_after_a_step(_engine(Fsdp("cpu")), TURNS[number::RANKS])
    if number == 0:
        torch.save(weights, Path(folder) / "weights.pt")
    dist.destroy_process_group()


def _engine(sharding: Sharding | None = None) -> LocalEngine:
    policy = load_policy("tiny", device="cpu", tiny=TinyConfig(width=16, layers=2, heads=2, context=32))
    return LocalEngine(policy, OptimizerSettings(learning_rate=1e-2), sharding=sharding)


def _weights_after_a_step(engine: LocalEngine, turns: Sequence[Turn]) -> Tensor:
    engine.step(turns, LogProbs(), normalizer=len(TURNS))
    return torch.cat([weight.flatten() for _, weight in engine.weights()])
