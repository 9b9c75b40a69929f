"""Results of finished runs: one small JSON file each while a study works, and one compressed file when it is finished.

A study can be stopped, resumed and spread over machines; both kinds of files are read alike.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import seeupo
from seeupo.comparison.planned_runs import PlannedRun
from seeupo.config.option_types import Options, Range
from seeupo.errors import RunError
from seeupo.utils.atomic_files import atomic_write, write_text
from seeupo.utils.option_checks import OptionError
from seeupo.utils.output_paths import check_output
from seeupo.utils.plain_files import open_plain, read_plain, refuse_links

FORMAT = "seeupo-compare-run"
MAX_BYTES = 8_000_000
RUNS = "runs"
WARM_STARTS = "warm_starts"
WORK = "work"
REMOVED = ".removed"
"""End of the names of run directories that are being removed."""
LOGS = "logs"
LOCK = ".lock"
TABLES = "comparison.json"
TEXT = "comparison.md"
PAGE = "comparison.html"
PACKED = "results.jsonl.gz"
"""File of packed results; others of the pattern results*.jsonl.gz, copied from elsewhere, are read as well."""
PLACE = "the directory of a comparison"
MAX_PACKED_BYTES = 512_000_000
"""Limit for the uncompressed size of a file of packed results."""
TRAINING_REVISION = 1
"""Number that runs must share to be compared. Raise it with a change after which the same settings give other results
for another reason than rounding: what an algorithm computes, a default, tasks, demonstrations, what is drawn at random.
A test fails after such a change, so that none is overlooked."""
Table = dict[str, Any]


Finite = Annotated[float, Range(-math.inf, exclude_low=True)]


@dataclass(frozen=True)
class RunResult(Options):
    """The result of a finished run.

    Attributes:
        arm: Name of the arm; "warm start" for a warm start.
        seed: Seed of the run.
        settings: Settings that the study chose for the arm.
        revision: `TRAINING_REVISION` of the code that trained it.
        version: Version of that code; for the record only.
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
    start: str = ""
    version: str = seeupo.__version__
    rewards: tuple[Finite, ...] = ()
    successes: tuple[Finite, ...] = ()
    evaluations: tuple[tuple[int, Finite], ...] = ()
    optimizer_steps: int = 0
    tokens: int = 0
    seconds: Mapping[str, Finite] = field(default_factory=dict)
    diverged: str | None = None

    @property
    def training_seconds(self) -> float:
        """Seconds of sampling and updates."""
        return sum(self.seconds.get(phase, 0.0) for phase in ("collect", "update"))

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


class Store:
    """The output directory of a study. No part of it may be a link, as in a run directory.

    Args:
        any_revision: Whether results of another training revision count.

    Raises:
        RunError: A part of the directory is a link or of another kind than expected.
    """

    def __init__(self, path: Path, *, any_revision: bool = False) -> None:
        self.path, self.any_revision = path, any_revision
        _check_parts(path)

    def result_path(self, run: PlannedRun) -> Path:
        folder = WARM_STARTS if run.is_warm_start else RUNS
        return self.path / folder / f"{run.name}.json"

    def policy_path(self, warm_start: PlannedRun) -> Path:
        """Return the directory of a warm start's policy, which may be missing where its runs are finished."""
        return self.path / WARM_STARTS / warm_start.name

    def has_policy(self, warm_start: PlannedRun) -> bool:
        return (self.policy_path(warm_start) / "config.json").exists()

    def result(self, run: PlannedRun) -> RunResult | None:
        """Return the result of a run; None if it is missing, damaged, or of another training revision.

        Raises:
            RunError: The file of packed results is damaged.
        """
        path = self.result_path(run)
        table = _loose_table(path) or self._packed.get(self._name(path))
        result = None if table is None else result_from(table)
        if result is None or (result.diverged is None and len(result.rewards) != run.recipe.run.total_iterations):
            return None
        return result if self.any_revision or result.revision == TRAINING_REVISION else None

    def pack(self) -> None:
        """Move all results into one compressed file, whose bytes depend on the results only."""
        paths = [path for folder in (RUNS, WARM_STARTS) for path in (self.path / folder).glob("*.json")]
        tables = {path: table for path in paths if (table := _loose_table(path)) is not None}
        if not tables:
            return
        target = self.path / PACKED
        packed = _read_packed(target) if target.exists() else {}
        packed |= {self._name(path): table for path, table in tables.items()}
        write_packed(target, packed)
        self._packed.update(packed)
        for path in tables:
            path.unlink()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    @cached_property
    def _packed(self) -> dict[str, Table]:
        """Results of all packed files, those of other studies or machines included, by their path before."""
        tables = dict[str, Table]()
        for path in sorted(self.path.glob("results*.jsonl.gz")):
            tables |= _read_packed(path)
        return tables


def _check_parts(path: Path) -> None:
    folders = [check_output(path, folder=True) / name for name in (RUNS, WARM_STARTS, WORK, LOGS)]
    files = [path / LOCK, *(path / name for name in (TABLES, TEXT, PAGE)), *path.glob("results*.jsonl.gz")]
    try:
        refuse_links((*folders, *files), place=PLACE)
        for folder in folders:
            if check_output(folder, folder=True).exists():
                # Other code reads the policies. The runs in `work` are checked when they are resumed.
                entries = folder.rglob("*") if folder.name == WARM_STARTS else folder.iterdir()
                refuse_links(sorted(entries), place=PLACE)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; choose another --out") from error
    for file in files:
        check_output(file)


def write_packed(path: Path, tables: Mapping[str, Table]) -> None:
    """Write results by name as sorted JSON lines, compressed without a date or a name."""
    with (
        atomic_write(path) as partial,
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file,
    ):
        for name, table in sorted(tables.items()):
            file.write((json.dumps({"file": name, **table}) + "\n").encode())


def read_packed(path: Path) -> dict[str, Table]:
    """Read packed results, which may come from another machine.

    Raises:
        OSError, EOFError, ValueError, zlib.error: The file is missing or damaged.
    """
    with open_plain(path) as raw, gzip.GzipFile(fileobj=raw) as file:
        content = file.read(MAX_PACKED_BYTES + 1)
    if len(content) > MAX_PACKED_BYTES:
        raise ValueError(f"it has more than {MAX_PACKED_BYTES / 1e6:.0f} MB")
    tables = {}
    for line in content.splitlines():
        table = json.loads(line)
        if not isinstance(table, dict) or not isinstance(name := table.pop("file", None), str):
            raise ValueError("a line has no name of a result")
        tables[name] = table
    return tables


def _read_packed(path: Path) -> dict[str, Table]:
    try:
        return read_packed(path)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise RunError(f"{path} is damaged: {error}; restore it, or remove it to train its runs again") from error


def write_result(path: Path, result: RunResult) -> None:
    """Write a result completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"format": FORMAT, **asdict(result)}) + "\n")


def result_from(table: Table) -> RunResult | None:
    """Return the result in a table, which may come from another machine; None if it is not a complete one."""
    if table.get("format") != FORMAT:
        return None
    known = {entry.name for entry in fields(RunResult)}
    try:
        result = RunResult(**{key: value for key, value in table.items() if key in known})
    except (TypeError, OptionError):  # a value is missing, of another type or not finite
        return None
    return result if len(result.rewards) == len(result.successes) else None


def _loose_table(path: Path) -> Table | None:
    """Return the JSON of a file of its own; None if it is missing or not the result of a run."""
    try:
        table = json.loads(read_plain(path, max_bytes=MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) and result_from(table) is not None else None


def weights_digest(policy: Path) -> str:
    """Return a hash of the weights of a policy, a Hugging Face folder."""
    digest = hashlib.sha256()
    for path in sorted(policy.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]
