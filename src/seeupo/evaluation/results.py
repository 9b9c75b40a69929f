"""Evaluation results: every task attempted several times, avg@k and pass@k, and everything needed to repeat it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import seeupo
from seeupo.core.statistics import Estimate, avg_at_k, count_successes, paired_difference, pass_at_k
from seeupo.envs.references import same_code
from seeupo.errors import EvaluationError
from seeupo.types import Attempt, Task
from seeupo.utils.atomic_files import write_text
from seeupo.utils.option_checks import check_unit_interval
from seeupo.utils.plain_files import read_plain
from seeupo.utils.records import read_record

FORMAT, VERSION = "seeupo-evaluation", 2


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """The outcome of one attempt at one task.

    Attributes:
        task: Id of the task.
        attempt: Index of the attempt at this task, from 0.
        score: Official score; None after an infrastructure failure, which is never scored.
        failure: Message of the infrastructure failure.
    """

    task: str
    kind: str
    attempt: int
    score: float | None
    stop: str
    turns: int
    prompt_tokens: int | None = None
    action_tokens: int | None = None
    truncated_responses: int = 0
    failure: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.attempt


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Settings of an evaluation, stored with its results.

    Attributes:
        attempts: Number of attempts per task.
        k: k in avg@k and pass@k.
        panel: Hash of the tasks; only results on the same panel can be compared.
    """

    policy: str
    environment: str
    split: str
    options: Mapping[str, Any]
    attempts: int
    k: int
    seed: int
    max_turns: int
    sampling: Mapping[str, Any]
    panel: str

    def result_file(self, folder: Path, *, existing: bool) -> Path:
        """Return a file named after policy, environment and split: the next free number, or the last existing one."""
        names = (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[-60:] for name in (self.policy, self.environment))
        stem, number = "-".join((*names, self.split)), 1
        while (folder / f"{stem}-{number:03d}.json").exists():
            number += 1
        return folder / f"{stem}-{max(1, number - existing):03d}.json"

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.attempts:
            raise EvaluationError(
                f"k = {self.k} with {self.attempts} attempts per task: expected 1 <= k <= attempts. Raise the attempts."
            )


def panel_of(tasks: Sequence[Task]) -> str:
    """Return a hash of the tasks: their ids, kinds, seeds and payloads, in order."""
    entries = [[task.id, task.kind, task.seed, task.payload] for task in tasks]
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Evaluation:
    """A plan and the results so far, by task and index of the attempt."""

    plan: EvaluationPlan
    results: dict[tuple[str, int], AttemptResult]

    def add(self, result: AttemptResult) -> None:
        """Add a result, in place of an earlier one of the same attempt."""
        self.results[result.key] = result

    def missing(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts without a score: never run, or failed."""
        scored = {key for key, result in self.results.items() if result.score is not None}
        return [attempt for attempt in attempts if (attempt.task.id, attempt.index) not in scored]

    def scores(self) -> dict[str, list[float]]:
        """Return the scores of each task's attempts."""
        scores: dict[str, list[float]] = {}
        for _, result in sorted(self.results.items()):
            if result.score is not None:
                scores.setdefault(result.task, []).append(result.score)
        return scores

    def summary(self) -> dict[str, Any]:
        """Return avg@k and pass@k of the tasks with at least k scored attempts, overall and per kind, and counts."""
        kinds = {result.task: result.kind for result in self.results.values()}
        scored = {task: rows for task, rows in self.scores().items() if len(rows) >= self.plan.k}
        results = list(self.results.values())
        by_kind = {
            kind: self._estimates({task: rows for task, rows in scored.items() if kinds[task] == kind})
            for kind in sorted(set(kinds.values()))
        }
        return {
            **self._estimates(scored),
            "kinds": by_kind if len(by_kind) > 1 else {},
            "tasks": len(scored),
            "tasks_without_k_scores": len(kinds) - len(scored),
            "episodes": len(results),
            "failures": sum(result.score is None for result in results),
            "stops": dict(sorted(Counter(result.stop for result in results).items())),
            "truncated_responses": sum(result.truncated_responses for result in results),
            "mean_turns": _mean([result.turns for result in results]),
            "mean_prompt_tokens": _mean([result.prompt_tokens for result in results]),
            "mean_action_tokens": _mean([result.action_tokens for result in results]),
        }

    def _estimates(self, scored: Mapping[str, list[float]]) -> dict[str, Any]:
        rows, k = list(scored.values()), self.plan.k
        if not rows:
            return {f"avg@{k}": None, f"pass@{k}": None, "tasks": 0}
        passed = pass_at_k(*count_successes(rows), k)
        return {f"avg@{k}": _to_json(avg_at_k(rows, k)), f"pass@{k}": _to_json(passed), "tasks": len(rows)}

    def write(self, path: Path) -> None:
        """Write the result file atomically."""
        record = {
            "format": FORMAT,
            "version": VERSION,
            "plan": asdict(self.plan),
            "versions": {"seeupo": seeupo.__version__, "python": platform.python_version(), "torch": version("torch")},
            "summary": self.summary(),
            "episodes": [asdict(result) for _, result in sorted(self.results.items())],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """Return the evaluation in a result file."""
        try:
            record = json.loads(read_plain(path.resolve()))
            if record["format"] != FORMAT or record["version"] != VERSION:
                raise ValueError(f"format {record['format']!r}, version {record['version']}")
            plan = read_record(EvaluationPlan, record["plan"], "plan")
            results = read_record(tuple[AttemptResult, ...], record["episodes"], "episode")
            for result in results:
                if result.score is not None:
                    check_unit_interval("score", result.score)
            if any(isinstance(n, int) and abs(n) >= 2**63 for part in (plan, *results) for n in vars(part).values()):
                raise ValueError("a number is too large")
            return cls(plan, {result.key: result for result in results})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise EvaluationError(f"{path} is not a readable evaluation result: {error}") from None

    def check_continues(self, plan: EvaluationPlan) -> None:
        """Raise unless `plan` continues this evaluation; the number of attempts may change."""
        for name, before in asdict(self.plan).items():
            now = getattr(plan, name)
            if json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True) and name != "attempts":
                raise EvaluationError(
                    f"{name} was {before!r} and is now {now!r}; resume with the same settings, or name another --out"
                )
        self.plan = plan


def compare(one: Evaluation, other: Evaluation) -> dict[str, Any]:
    """Return the difference `other` - `one` in avg@k and pass@k, paired over tasks."""
    if not same_code(one.plan.environment, other.plan.environment) or one.plan.panel != other.plan.panel:
        raise EvaluationError(
            f"the results are for different tasks ({one.plan.environment}, panel {one.plan.panel}; "
            f"{other.plan.environment}, panel {other.plan.panel}); only the same panel can be compared"
        )
    k = min(one.plan.k, other.plan.k)
    before = one.scores()
    after = other.scores()
    tasks = [task for task in before if len(before[task]) >= k and len(after.get(task, [])) >= k]
    if not tasks:
        raise EvaluationError("no task has enough scored attempts in both results")
    pairs = [after[task] for task in tasks], [before[task] for task in tasks]
    return {
        "tasks": len(tasks),
        f"avg@{k}": _to_json(paired_difference(*pairs)),
        f"pass@{k}": _to_json(paired_difference(*pairs, pass_k=k)),
    }


def _to_json(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


VERDICTS = {
    "improved": "Improved",
    "regressed": "Regressed",
    "no_change": "No significant change",
    "inconclusive": "Inconclusive",
}
"""Labels of the verdicts on a difference, in the terminal and in the report."""


def verdict_of(difference: Mapping[str, Any] | None, k: int | None) -> str:
    """Return the key of the verdict on a difference that `compare` returned; None is inconclusive."""
    gain = None if difference is None else difference.get(f"avg@{k}")
    if gain is None:
        return "inconclusive"
    if gain["low"] > 0:
        return "improved"
    return "regressed" if gain["high"] < 0 else "no_change"
