"""Read a run directory as far as possible, and report which parts are missing or damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
    STOPPED,
    SUMMARY,
    TRAJECTORIES,
)
from seeupo.utils.plain_files import read_plain
from seeupo.utils.text import counted, listed

TRAJECTORY_FILE = re.compile(r"([0-9]{5,})\.jsonl\.gz")
EVALUATION_FILE = re.compile(r"([0-9]{5,})\.json")


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
        stopped: Whether the user stopped the run and has not resumed it yet.
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
    stopped: bool
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
        if len(self.evaluations) > 1:
            return self.evaluations[0], self.evaluations[-1]
        single = next(iter(self.evaluations), None)
        return (None, single) if single is not None and single.iteration else (single, None)


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
    stopped = (path / STOPPED).exists()
    run = StoredRun(
        path=path,
        name=path.resolve().name,
        recipe=_table(path / RECIPE, missing),
        env_info=_table(path / ENV_INFO, missing),
        summary=_table(path / SUMMARY, missing) if (path / SUMMARY).exists() else {},
        ended=(path / SUMMARY).exists() and not stopped,
        stopped=stopped,
        records={} if stopped and not (path / METRICS).exists() else _records(path / METRICS, missing),
        evaluations=_evaluations(path / EVALUATIONS, missing),
        trajectories=_numbered(path / TRAJECTORIES, TRAJECTORY_FILE),
        evaluation_trajectories=_numbered(path / EVALUATIONS, TRAJECTORY_FILE),
        tokenizer=_tokenizer(path),
        missing=missing,
    )
    missing.extend(_missing_parts(run))
    return run


def _missing_parts(run: StoredRun) -> Iterator[str]:
    if not run.ended and not run.stopped:
        planned = run.setting("run", "iterations")
        of = f" of {planned}" if isinstance(planned, int) else ""
        yield f"There is no {SUMMARY}: the run stopped or is still running, after iteration {run.last_iteration}{of}."
    recorded = {record["iteration"] for record in run.records.get("iteration", [])}
    if not recorded and not run.trajectories and run.stopped:
        return  # before the first iteration
    if not recorded:
        yield f"{METRICS} has no record of an iteration: curves show only what the trajectories contain."
    elif unrecorded := sorted(set(run.trajectories) - recorded):
        yield f"{METRICS} has no record of {listed('iteration', unrecorded)}, but there are trajectories."
    if not run.trajectories:
        yield "There are no training trajectories."
    elif lost := sorted(recorded - set(run.trajectories)):
        yield f"The trajectories of {listed('iteration', lost)} are missing."
    if not run.evaluations:
        yield "There is no evaluation on held-out tasks, so it is unknown whether the policy improved."
    elif len(run.evaluations) == 1 and not run.stopped:
        iteration = run.evaluations[0].iteration
        when = f"after iteration {iteration}" if iteration else "before training"
        yield f"There is only one evaluation, {when}, and nothing to compare it with."
    for evaluation in run.first_and_last:
        if evaluation is not None and evaluation.iteration not in run.evaluation_trajectories:
            name = f"{evaluation.iteration:05d}"
            yield f"The trajectories of evaluation {name} are missing; only their scores are known."
    if run.tokenizer is None:
        yield "There is no tokenizer in policy or checkpoints: responses are not split into tokens."


def _content(path: Path, missing: list[str]) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return read_plain(path)
    except FileNotFoundError:
        missing.append(f"There is no {path.name}.")
    except OSError:
        missing.append(f"{path.name} cannot be read.")
    return None


def _table(path: Path, missing: list[str]) -> dict[str, Any]:
    """Return the table in a JSON or TOML file; it is empty if the file cannot be read."""
    content = _content(path, missing)
    if content is None:
        return {}
    try:
        table = parse_toml(content.decode()) if path.suffix == ".toml" else json.loads(content)
        if not isinstance(table, dict):
            raise ValueError
    except (ValueError, RecursionError):
        missing.append(f"{path.name} cannot be read.")
        return {}
    return table


def _records(path: Path, missing: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the records by kind. Of several about one iteration the last counts, except for the warm start."""
    complete, _, rest = (_content(path, missing) or b"").rpartition(b"\n")
    if rest:
        missing.append(f"The last line of {path.name} is incomplete and was skipped.")
    records: dict[str, dict[Any, dict[str, Any]]] = {}
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
        records.setdefault(kind, {})[iteration, number if kind == "warm_start" else 0] = record
    if damaged:
        missing.append(f"{path.name} has {counted(damaged, 'damaged line')}, skipped.")
    return {kind: [by_key[key] for key in sorted(by_key)] for kind, by_key in records.items()}


def _evaluations(directory: Path, missing: list[str]) -> list[StoredEvaluation]:
    evaluations = []
    for iteration, path in _numbered(directory, EVALUATION_FILE).items():
        try:
            if path.is_symlink():
                raise EvaluationError(f"{path} is a symbolic link")
            evaluation = Evaluation.read(path)
            evaluations.append(StoredEvaluation(iteration, evaluation, evaluation.summary()))
        except (EvaluationError, ValueError):
            missing.append(f"evaluations/{path.name} cannot be read and was skipped.")
    return evaluations


def _numbered(directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files of a directory by the number in their name, in order. Links are not followed."""
    try:
        files = sorted(directory.iterdir()) if directory.is_dir() and not directory.is_symlink() else []
    except OSError:
        files = []
    numbered = {int(match[1]): file for file in files if (match := pattern.fullmatch(file.name))}
    return dict(sorted(numbered.items()))


def _tokenizer(path: Path) -> Path | None:
    """Return the tokenizer of the trained policy, or else of the newest checkpoint."""
    folders = [path / POLICY, *sorted(path.glob(f"{CHECKPOINTS}/[0-9]*"), reverse=True)]
    files = (folder / "tokenizer.json" for folder in folders)
    return next((file for file in files if file.is_file() and not _through_link(file, path)), None)


def _through_link(file: Path, run_dir: Path) -> bool:
    """Return whether a file, or a directory between it and the run directory, is a symbolic link."""
    inner = [file, *file.parents]
    return any(part.is_symlink() for part in inner[: inner.index(run_dir)])
