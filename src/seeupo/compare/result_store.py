"""Results of finished runs, one small JSON file each: a study can be stopped, resumed and spread over machines."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import seeupo
from seeupo.compare.planned_runs import PlannedRun, WarmStart
from seeupo.utils.atomic_files import write_text
from seeupo.utils.plain_files import read_plain

FORMAT = "seeupo-compare-run"
MAX_BYTES = 8_000_000
TRAINING_REVISION = 1
"""Number that runs must share to be compared. Raise it with a change after which the same settings give other results
for another reason than rounding: what an algorithm computes, a default, tasks, demonstrations, what is drawn at random.
A test fails after such a change, so that none is overlooked."""
IRRELEVANT = ("cli", "display", "doctor", "planning", "recipes", "report", "studies")
"""Packages that a training run does not depend on."""


@dataclass(frozen=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        arm: Name of the arm; "warm start" for a warm start.
        seed: Seed of the run.
        settings: Settings that the study chose for the arm.
        revision: `TRAINING_REVISION` of the code that trained it.
        code: Hash of that code, see `code_version`; for the record only.
        start: Hash of the weights that it started from, see `weights_digest`; empty without a warm start.
        rewards, successes: Mean reward and share of solved episodes of each iteration.
        evaluations: Iterations with their held-out avg@k.
        optimizer_steps: Number of optimizer steps of the policy.
        tokens: Number of tokens through the policy, in sampling and updates.
        seconds: Seconds by phase.
        diverged: Error that ended the run early because its weights or gradients were no longer finite.
    """

    arm: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    revision: int = TRAINING_REVISION
    code: str = ""
    start: str = ""
    version: str = seeupo.__version__
    rewards: Sequence[float] = ()
    successes: Sequence[float] = ()
    evaluations: Sequence[Sequence[float]] = ()
    optimizer_steps: int = 0
    tokens: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    diverged: str | None = None

    @property
    def training_seconds(self) -> float:
        """Seconds of sampling and updates."""
        return sum(self.seconds.get(phase, 0.0) for phase in ("collect", "update"))

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


class Store:
    """The output directory of a study.

    Args:
        any_revision: Whether results of another training revision count.
    """

    def __init__(self, path: Path, *, any_revision: bool = False) -> None:
        self.path, self.any_revision = path, any_revision

    def result_path(self, run: PlannedRun) -> Path:
        return self.path / "runs" / f"{run.name}.json"

    def warm_start_path(self, warm_start: WarmStart) -> Path:
        return self.path / "warm_starts" / f"{warm_start.name}.json"

    def policy_path(self, warm_start: WarmStart) -> Path:
        """Return the directory of a warm start's policy, which may be missing where its runs are finished."""
        return self.path / "warm_starts" / warm_start.name

    def has_policy(self, warm_start: WarmStart) -> bool:
        return (self.policy_path(warm_start) / "config.json").exists()

    def result(self, run: PlannedRun | WarmStart) -> RunResult | None:
        """Return the result of a run; None if it is missing, damaged, or of another training revision."""
        path = self.warm_start_path(run) if isinstance(run, WarmStart) else self.result_path(run)
        try:
            found = read_result(path)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        iterations = run.recipe.run.total_iterations
        if found.diverged is None and len(found.rewards) != iterations:
            return None
        return found if self.any_revision or found.revision == TRAINING_REVISION else None


def write_result(path: Path, result: RunResult) -> None:
    """Write a result completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"format": FORMAT, **asdict(result)}) + "\n")


def read_result(path: Path) -> RunResult:
    """Read a result, which may come from another machine.

    Raises:
        OSError, ValueError, TypeError: It is missing or damaged.
    """
    found = json.loads(read_plain(path, max_bytes=MAX_BYTES))
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not a result of a comparison")
    result = RunResult(**found)
    if not _is_complete(result):
        raise ValueError(f"{path} has values of the wrong type, or lacks some")
    return result


def _is_complete(result: RunResult) -> bool:
    """Return whether all values have their types and are finite."""
    lists = (result.rewards, result.successes, result.evaluations)
    if not all(isinstance(each, list) for each in lists) or not isinstance(result.seconds, dict):
        return False
    if not all(isinstance(row, list) and len(row) == 2 for row in result.evaluations):
        return False
    counts = (result.seed, result.optimizer_steps, result.tokens)
    numbers = [*result.rewards, *result.successes, *chain(*result.evaluations), *result.seconds.values(), *counts]
    return (
        all(isinstance(each, int) for each in counts)
        and all(isinstance(each, int | float) and math.isfinite(each) for each in numbers)
        and len(result.rewards) == len(result.successes)
        and isinstance(result.diverged, str | None)
    )


def weights_digest(policy: Path) -> str:
    """Return a hash of the weights of a policy, a Hugging Face folder."""
    digest = hashlib.sha256()
    for path in sorted(policy.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


@cache
def code_version() -> str:
    """Return a hash of the sources that a training run depends on.

    These are all modules of the package except the command line, displays, reports, planning and studies.
    """
    package = Path(seeupo.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if relative.parts[0] not in IRRELEVANT:
            digest.update(f"{relative.as_posix()}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]
