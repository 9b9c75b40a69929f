"""The folder of a run, read as far as it can be read: what is not there or damaged is said, and the rest is used."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo.errors import EvaluationError, RunError
from seeupo.runs.evaluations import Evaluation
from seeupo.runs.run_directory import ENV_INFO, METRICS, OLD_ENV_INFO, RECIPE, SUMMARY

TRAJECTORIES = re.compile(r"([0-9]{5,})\.jsonl\.gz")
EVALUATION = re.compile(r"([0-9]{5,})\.json")
NAMED = 3
"""How many of the things that are missing are named, where there are more."""


@dataclass(frozen=True)
class HeldOut:
    """An evaluation after so many iterations, and its summary."""

    iteration: int
    evaluation: Evaluation
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReadRun:
    """What a run's folder holds.

    Attributes:
        path: as it was given.
        recipe, env_info, summary: empty where they cannot be read.
        ended: whether there is a summary, which is written last.
        records: of the metrics, by kind, in order of their iterations.
        evaluations: in order.
        trajectories: files of training, by iteration.
        held_out: files of the evaluations' trajectories, by iteration.
        tokenizer: a tokenizer's file.
        missing: sentences about what this folder lacks.
    """

    path: Path
    name: str
    recipe: Mapping[str, Any]
    env_info: Mapping[str, Any]
    summary: Mapping[str, Any]
    ended: bool
    records: Mapping[str, list[dict[str, Any]]]
    evaluations: list[HeldOut]
    trajectories: dict[int, Path]
    held_out: dict[int, Path]
    tokenizer: Path | None
    missing: list[str] = field(default_factory=list)

    def setting(self, section: str, key: str) -> Any:
        """A key of the recipe, or None."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @property
    def last_iteration(self) -> int:
        """The last one that left anything, 0 if none did."""
        known: list[int] = [record["iteration"] for record in self.records.get("iteration", [])]
        return max([0, *known, *self.trajectories])

    @property
    def first_and_last(self) -> tuple[HeldOut | None, HeldOut | None]:
        """The evaluations to be compared. A single one is the first if nothing was trained before it."""
        found = self.evaluations
        if len(found) == 1:
            return (found[0], None) if found[0].iteration == 0 else (None, found[0])
        return (found[0], found[-1]) if found else (None, None)


def read_run(path: Path) -> ReadRun:
    """Read a run's folder; one in which nothing is of a run is a `RunError`."""
    if not path.is_dir():
        raise RunError(f"{path} is {'a file' if path.exists() else 'not there'}; name the folder of a run")
    if not any((path / name).is_file() for name in (RECIPE, ENV_INFO, OLD_ENV_INFO, METRICS)):
        raise RunError(f"{path} is no run: it has no {RECIPE}, {ENV_INFO} or {METRICS}; name the folder of a run")
    missing: list[str] = []
    run = ReadRun(
        path=path,
        name=path.resolve().name,
        recipe=_table(path / RECIPE, missing),
        env_info=_env_info(path, missing),
        summary=_table(path / SUMMARY, missing) if (path / SUMMARY).exists() else {},
        ended=(path / SUMMARY).exists(),
        records=_records(path / METRICS, missing),
        evaluations=_evaluations(path / "evaluations", missing),
        trajectories=_numbered(path / "trajectories", TRAJECTORIES),
        held_out=_numbered(path / "evaluations", TRAJECTORIES),
        tokenizer=_tokenizer(path),
        missing=missing,
    )
    missing.extend(_lacks(run))
    return run


def _env_info(path: Path, missing: list[str]) -> dict[str, Any]:
    """Return the environment info of either run format, with the names of the current one."""
    old = (path / OLD_ENV_INFO).exists()
    info = _table(path / (OLD_ENV_INFO if old else ENV_INFO), missing)
    if old and "own_environment" in info:
        info["custom_environment"] = info.pop("own_environment")
    return info


def _lacks(run: ReadRun) -> list[str]:
    """Sentences about what is not there."""
    found = []
    if not run.ended:
        wanted = run.setting("run", "iterations")
        of = f" of {wanted}" if isinstance(wanted, int) else ""
        found.append(
            f"There is no {SUMMARY}: the run was stopped or goes on; it has {run.last_iteration}{of} iterations."
        )
    with_record = {record["iteration"] for record in run.records.get("iteration", [])}
    if not with_record:
        found.append(f"{METRICS} has no record of an iteration: curves show no more than the trajectories tell.")
    elif silent := sorted(set(run.trajectories) - with_record):
        found.append(f"{METRICS} has no record of {_listed('iteration', silent)}, which left trajectories.")
    if not run.trajectories:
        found.append("There are no trajectories of training.")
    elif gone := sorted(with_record - set(run.trajectories)):
        found.append(f"The trajectories of {_listed('iteration', gone)} are not there.")
    if not run.evaluations:
        found.append("There is no evaluation on held-out tasks, so nobody knows what was learned.")
    elif len(run.evaluations) == 1:
        (only,) = run.evaluations
        when = "before training" if only.iteration == 0 else f"after {only.iteration} iterations"
        found.append(f"There is one evaluation only, {when}, and nothing to compare it with.")
    found += [
        f"The held-out episodes of evaluation {each.iteration:05d} were not kept: only their scores."
        for each in run.first_and_last
        if each is not None and each.iteration not in run.held_out
    ]
    if run.tokenizer is None:
        found.append("There is no tokenizer in policy or checkpoints: responses are shown whole, not token by token.")
    return found


def _listed(noun: str, values: list[int]) -> str:
    """A few numbers of many."""
    named = ", ".join(map(str, values[:NAMED]))
    more = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    return f"{noun}{'s' if len(values) > 1 else ''} {named}{more}"


def regular(path: Path) -> Path:
    """The path, if it is a file: a pipe or a device may have no end."""
    if path.exists() and not path.is_file():
        raise OSError
    return path


def _table(path: Path, missing: list[str]) -> dict[str, Any]:
    """The table in a JSON or TOML file, empty if it cannot be read."""
    try:
        text = regular(path).read_text(encoding="utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
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
    """The records by kind. Of several about the same iteration the last one counts, but for the warm start's."""
    try:
        content = regular(path).read_bytes()
    except FileNotFoundError:
        content = b""
        missing.append(f"There is no {path.name}.")
    except OSError:
        content = b""
        missing.append(f"{path.name} cannot be read.")
    whole, _, cut = content.rpartition(b"\n")
    if cut:
        missing.append(f"The last line of {path.name} was cut off and is left out.")
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    damaged = 0
    for place, line in enumerate(whole.split(b"\n") if whole else ()):
        try:
            record = json.loads(line)
            kind, iteration = record["kind"], record["iteration"]
            if not isinstance(kind, str) or type(iteration) is not int or iteration < 0:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged += 1
            continue
        found.setdefault(kind, {})[(iteration, place if kind == "warm_start" else 0)] = record
    if damaged:
        missing.append(
            f"{path.name} has {damaged} line{'s' if damaged > 1 else ''} that cannot be read; they are left out."
        )
    return {kind: [records[key] for key in sorted(records)] for kind, records in found.items()}


def _evaluations(folder: Path, missing: list[str]) -> list[HeldOut]:
    found = []
    for iteration, path in _numbered(folder, EVALUATION).items():
        try:
            evaluation = Evaluation.read(regular(path))
            found.append(HeldOut(iteration, evaluation, evaluation.summary()))
        except (EvaluationError, OSError, ValueError, TypeError, AttributeError, RecursionError):
            missing.append(f"evaluations/{path.name} cannot be read and is left out.")
    return found


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """The files of a folder by their number, in order."""
    try:
        files = list(folder.iterdir()) if folder.is_dir() else []
    except OSError:
        files = []
    found = {int(match[1]): file for file in sorted(files) if (match := pattern.fullmatch(file.name))}
    return dict(sorted(found.items()))


def _tokenizer(path: Path) -> Path | None:
    """The trained policy's, or the one of the newest checkpoint while there is no policy."""
    places = [path / "policy", *sorted(path.glob("checkpoints/[0-9]*"), reverse=True)]
    return next((file for place in places if (file := place / "tokenizer.json").is_file()), None)
