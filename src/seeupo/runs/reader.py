"""Read a run directory as far as possible, and report which parts are missing or damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo.config.toml import parse_toml
from seeupo.errors import EvaluationError, RunError
from seeupo.evaluation.results import Evaluation
from seeupo.runs.run_directory import (
    CHECKPOINTS,
    ENV_INFO,
    EVALUATIONS,
    METRICS,
    POLICY,
    RECIPE,
    SUMMARY,
    TRAJECTORIES,
)
from seeupo.utils.plain_files import read_plain

TRAJECTORY_FILE = re.compile(r"([0-9]{5,})\.jsonl\.gz")
EVALUATION_FILE = re.compile(r"([0-9]{5,})\.json")
MAX_LISTED = 3
"""Number of missing iterations that are listed before "and N more"."""


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation on held-out tasks, with the number of iterations before it and its summary."""

    iteration: int
    evaluation: Evaluation
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """The contents of a run directory.

    Attributes:
        path: The run directory, as given.
        recipe, env_info, summary: Empty if the file cannot be read.
        ended: Whether the run has ended: its summary is written at the end.
        records: Metrics by kind, in the order of their iterations.
        evaluations: Evaluations in the order of their iterations.
        trajectories: Trajectory files of training, by iteration.
        evaluation_trajectories: Trajectory files of evaluations, by iteration.
        tokenizer: File of the policy's tokenizer.
        missing: Sentences about missing or damaged parts.
    """

    path: Path
    name: str
    recipe: Mapping[str, Any]
    env_info: Mapping[str, Any]
    summary: Mapping[str, Any]
    ended: bool
    records: Mapping[str, list[dict[str, Any]]]
    evaluations: list[StoredEvaluation]
    trajectories: dict[int, Path]
    evaluation_trajectories: dict[int, Path]
    tokenizer: Path | None
    missing: list[str] = field(default_factory=list)

    def setting(self, section: str, key: str) -> Any:
        """Return a setting of the recipe, or None."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @property
    def last_iteration(self) -> int:
        """The last iteration with a record or trajectories; 0 if there is none."""
        recorded: list[int] = [record["iteration"] for record in self.records.get("iteration", [])]
        return max([0, *recorded, *self.trajectories])

    @property
    def first_and_last(self) -> tuple[StoredEvaluation | None, StoredEvaluation | None]:
        """The evaluations to compare. A single one is the first if it precedes training, and the last otherwise."""
        found = self.evaluations
        if len(found) == 1:
            return (found[0], None) if found[0].iteration == 0 else (None, found[0])
        return (found[0], found[-1]) if found else (None, None)


def read_run(path: Path) -> StoredRun:
    """Read a run directory.

    Raises:
        RunError: Nothing in the directory belongs to a run.
    """
    if not path.is_dir():
        raise RunError(f"{path} {'is a file' if path.exists() else 'does not exist'}; expected a run directory")
    if not any((path / name).is_file() for name in (RECIPE, ENV_INFO, METRICS)):
        raise RunError(
            f"{path} is not a run directory: it has no {RECIPE}, {ENV_INFO} or {METRICS}. Name the directory of a run."
        )
    missing = [
        f"{name} is a symbolic link and was not followed."
        for name in (TRAJECTORIES, EVALUATIONS, CHECKPOINTS, POLICY)
        if (path / name).is_symlink()
    ]
    run = StoredRun(
        path=path,
        name=path.resolve().name,
        recipe=_table(path / RECIPE, missing),
        env_info=_table(path / ENV_INFO, missing),
        summary=_table(path / SUMMARY, missing) if (path / SUMMARY).exists() else {},
        ended=(path / SUMMARY).exists(),
        records=_records(path / METRICS, missing),
        evaluations=_evaluations(path / EVALUATIONS, missing),
        trajectories=_numbered(path / TRAJECTORIES, TRAJECTORY_FILE),
        evaluation_trajectories=_numbered(path / EVALUATIONS, TRAJECTORY_FILE),
        tokenizer=_tokenizer(path),
        missing=missing,
    )
    missing.extend(_missing_parts(run))
    return run


def _missing_parts(run: StoredRun) -> list[str]:
    found = []
    if not run.ended:
        wanted = run.setting("run", "iterations")
        of = f" of {wanted}" if isinstance(wanted, int) else ""
        found.append(
            f"There is no {SUMMARY}: the run stopped or is still running, after iteration {run.last_iteration}{of}."
        )
    recorded = {record["iteration"] for record in run.records.get("iteration", [])}
    if not recorded:
        found.append(f"{METRICS} has no record of an iteration: curves show only what the trajectories contain.")
    elif unrecorded := sorted(set(run.trajectories) - recorded):
        found.append(f"{METRICS} has no record of {_listed(unrecorded)}, but there are trajectories.")
    if not run.trajectories:
        found.append("There are no training trajectories.")
    elif lost := sorted(recorded - set(run.trajectories)):
        found.append(f"The trajectories of {_listed(lost)} are missing.")
    if not run.evaluations:
        found.append("There is no evaluation on held-out tasks, so it is unknown whether the policy improved.")
    elif len(run.evaluations) == 1:
        (only,) = run.evaluations
        when = "before training" if only.iteration == 0 else f"after iteration {only.iteration}"
        found.append(f"There is only one evaluation, {when}, and nothing to compare it with.")
    found += [
        f"The trajectories of evaluation {each.iteration:05d} are missing; only their scores are known."
        for each in run.first_and_last
        if each is not None and each.iteration not in run.evaluation_trajectories
    ]
    if run.tokenizer is None:
        found.append("There is no tokenizer in policy or checkpoints: responses are not split into tokens.")
    return found


def _listed(iterations: list[int]) -> str:
    """Return the first few of many iterations, as text."""
    named = ", ".join(map(str, iterations[:MAX_LISTED]))
    more = f" and {len(iterations) - MAX_LISTED} more" if len(iterations) > MAX_LISTED else ""
    return f"iteration{'s' if len(iterations) > 1 else ''} {named}{more}"


def _table(path: Path, missing: list[str]) -> dict[str, Any]:
    """Return the table in a JSON or TOML file; it is empty if the file cannot be read."""
    try:
        text = read_plain(path).decode()
        table = parse_toml(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(table, dict):
            raise ValueError
    except FileNotFoundError:
        missing.append(f"There is no {path.name}.")
        return {}
    except (OSError, ValueError, RecursionError):
        missing.append(f"{path.name} cannot be read.")
        return {}
    return table


def _records(path: Path, missing: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the records by kind. Of several about one iteration the last counts, except for the warm start."""
    try:
        content = read_plain(path)
    except FileNotFoundError:
        content = b""
        missing.append(f"There is no {path.name}.")
    except OSError:
        content = b""
        missing.append(f"{path.name} cannot be read.")
    complete, _, rest = content.rpartition(b"\n")
    if rest:
        missing.append(f"The last line of {path.name} is incomplete and was skipped.")
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    damaged = 0
    for number, line in enumerate(complete.split(b"\n") if complete else ()):
        try:
            record = json.loads(line)
            kind, iteration = record["kind"], record["iteration"]
            if not isinstance(kind, str) or type(iteration) is not int or iteration < 0:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged += 1
            continue
        found.setdefault(kind, {})[(iteration, number if kind == "warm_start" else 0)] = record
    if damaged:
        missing.append(f"{path.name} has {damaged} damaged line{'s' if damaged > 1 else ''}, skipped.")
    return {kind: [records[key] for key in sorted(records)] for kind, records in found.items()}


def _evaluations(directory: Path, missing: list[str]) -> list[StoredEvaluation]:
    found = []
    for iteration, path in _numbered(directory, EVALUATION_FILE).items():
        try:
            if path.is_symlink():
                raise OSError
            evaluation = Evaluation.read(path)
            found.append(StoredEvaluation(iteration, evaluation, evaluation.summary()))
        except (EvaluationError, OSError, ValueError, TypeError, AttributeError, RecursionError):
            missing.append(f"evaluations/{path.name} cannot be read and was skipped.")
    return found


def _numbered(directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files of a directory by the number in their name, in order. Links are not followed."""
    try:
        files = list(directory.iterdir()) if directory.is_dir() and not directory.is_symlink() else []
    except OSError:
        files = []
    found = {int(match[1]): file for file in sorted(files) if (match := pattern.fullmatch(file.name))}
    return dict(sorted(found.items()))


def _tokenizer(path: Path) -> Path | None:
    """Return the tokenizer of the trained policy, or else of the newest checkpoint."""
    folders = [path / POLICY, *sorted(path.glob(f"{CHECKPOINTS}/[0-9]*"), reverse=True)]
    files = (folder / "tokenizer.json" for folder in folders)
    return next((file for file in files if file.is_file() and not _through_link(file, path)), None)


def _through_link(file: Path, run_dir: Path) -> bool:
    """Return whether a file, or a directory between it and the run directory, is a symbolic link."""
    inner = [file, *file.parents]
    return any(part.is_symlink() for part in inner[: inner.index(run_dir)])
