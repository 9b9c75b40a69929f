"""Evaluation: every task several times, avg@k and pass@k with intervals, and everything needed to repeat it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import seeupo
from seeupo.core.statistics import Estimate, avg_at_k, count_successes, paired_difference, pass_at_k
from seeupo.training.seeds import seed_of
from seeupo.training.whole_files import write_text
from seeupo.types import Task

FORMAT, VERSION = "seeupo-evaluation", 1


class EvaluationError(Exception):
    """An evaluation cannot be made, read or compared as asked. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One attempt at one task. The score is None if the infrastructure failed, which is never scored."""

    task: str
    kind: str
    sample: int
    score: float | None
    stop: str
    turns: int
    prompt_tokens: int | None = None
    action_tokens: int | None = None
    cut_responses: int = 0
    failure: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.sample


@dataclass(frozen=True)
class Attempt:
    """An episode to be played: the `sample`-th of its task."""

    task: Task
    sample: int
    seed: int


class Player(Protocol):
    """Plays attempts, many at a time, in any order."""

    def play(self, attempts: Sequence[Attempt]) -> Iterable[Episode]: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is evaluated, in words and numbers: all of it is written beside the results.

    Attributes:
        samples: attempts at each task.
        k: of avg@k and pass@k.
        panel: a hash of the tasks; results of different panels cannot be compared.
    """

    policy: str
    environment: str
    split: str
    options: Mapping[str, Any]
    samples: int
    k: int
    seed: int
    max_turns: int
    sampling: Mapping[str, Any]
    panel: str

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.samples:
            raise EvaluationError(
                f"k is {self.k} with {self.samples} samples of each task; it must be in 1 ... samples"
            )


def panel_of(tasks: Sequence[Task]) -> str:
    """A hash of tasks: their ids, kinds, seeds and payloads, in order."""
    entries = [[task.id, task.kind, task.seed, task.payload] for task in tasks]
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]


def attempts(tasks: Sequence[Task], samples: int, seed: int) -> list[Attempt]:
    """All attempts, task by task, each with a seed of its own that depends on nothing else."""
    return [Attempt(task, sample, seed_of(seed, f"{task.id}/{sample}")) for task in tasks for sample in range(samples)]


@dataclass
class Evaluation:
    """A plan and the episodes played so far."""

    plan: Plan
    episodes: dict[tuple[str, int], Episode]

    def add(self, episode: Episode) -> None:
        self.episodes[episode.key] = episode

    def missing(self, wanted: Sequence[Attempt]) -> list[Attempt]:
        """Attempts that have not been scored: never played, or failed."""
        return [
            attempt
            for attempt in wanted
            if (found := self.episodes.get((attempt.task.id, attempt.sample))) is None or found.score is None
        ]

    def scores(self) -> dict[str, list[float]]:
        """Per task, the scores of its attempts."""
        found: dict[str, list[float]] = {}
        for episode in sorted(self.episodes.values(), key=lambda episode: episode.key):
            if episode.score is not None:
                found.setdefault(episode.task, []).append(episode.score)
        return found

    def summary(self) -> dict[str, Any]:
        """avg@k and pass@k of the tasks with at least k scored attempts, all kinds together and each alone."""
        kinds = {episode.task: episode.kind for episode in self.episodes.values()}
        scored = {task: rows for task, rows in self.scores().items() if len(rows) >= self.plan.k}
        episodes = list(self.episodes.values())
        by_kind = {
            kind: self._estimates({task: rows for task, rows in scored.items() if kinds[task] == kind})
            for kind in sorted(set(kinds.values()))
        }
        return {
            **self._estimates(scored),
            "kinds": by_kind if len(by_kind) > 1 else {},
            "tasks": len(scored),
            "tasks_without_k_scores": len(kinds) - len(scored),
            "episodes": len(episodes),
            "failures": sum(episode.score is None for episode in episodes),
            "stops": dict(sorted(Counter(episode.stop for episode in episodes).items())),
            "cut_responses": sum(episode.cut_responses for episode in episodes),
            "mean_turns": _mean([episode.turns for episode in episodes]),
            "mean_prompt_tokens": _mean([e.prompt_tokens for e in episodes if e.prompt_tokens is not None]),
            "mean_action_tokens": _mean([e.action_tokens for e in episodes if e.action_tokens is not None]),
        }

    def _estimates(self, scored: Mapping[str, list[float]]) -> dict[str, Any]:
        rows, k = list(scored.values()), self.plan.k
        if not rows:
            return {f"avg@{k}": None, f"pass@{k}": None, "tasks": 0}
        passed = pass_at_k(*count_successes(rows), k)
        return {f"avg@{k}": _to_json(avg_at_k(rows, k)), f"pass@{k}": _to_json(passed), "tasks": len(rows)}

    def write(self, path: Path) -> None:
        """Write the file so that it is there complete or not at all."""
        record = {
            "format": FORMAT,
            "version": VERSION,
            "plan": asdict(self.plan),
            "versions": {"seeupo": seeupo.__version__, "python": platform.python_version(), "torch": version("torch")},
            "summary": self.summary(),
            "episodes": [asdict(episode) for _, episode in sorted(self.episodes.items())],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT or record["version"] > VERSION:
                raise ValueError(f"format {record['format']!r}, version {record['version']}")
            episodes = [Episode(**entry) for entry in record["episodes"]]
            return cls(Plan(**record["plan"]), {episode.key: episode for episode in episodes})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EvaluationError(f"{path} is no evaluation that this program can read: {error}") from None

    def check_continues(self, plan: Plan) -> None:
        """Refuse to go on with another plan than the one that was begun."""
        for name, begun in asdict(self.plan).items():
            wanted = asdict(plan)[name]
            if json.dumps(begun, sort_keys=True) != json.dumps(wanted, sort_keys=True) and name != "samples":
                raise EvaluationError(
                    f"{name} was {begun!r} and is now {wanted!r}; go on as it was begun, or start anew"
                )
        self.plan = plan


def compare(one: Evaluation, other: Evaluation) -> dict[str, Any]:
    """The other minus the one, paired over tasks, as avg and as pass@k."""
    if (one.plan.environment, one.plan.panel) != (other.plan.environment, other.plan.panel):
        raise EvaluationError(
            f"the results are of different tasks ({one.plan.environment}, panel {one.plan.panel}; "
            f"{other.plan.environment}, panel {other.plan.panel}); only the same panel can be compared"
        )
    k = min(one.plan.k, other.plan.k)
    first, second = one.scores(), other.scores()
    both = [task for task in first if len(first[task]) >= k and len(second.get(task, [])) >= k]
    if not both:
        raise EvaluationError("no task has enough scored attempts in both results")
    rows = [first[task] for task in both], [second[task] for task in both]
    return {
        "tasks": len(both),
        f"avg@{k}": _to_json(paired_difference(rows[1], rows[0])),
        f"pass@{k}": _to_json(paired_difference(rows[1], rows[0], pass_k=k)),
    }


def shown(estimate: Mapping[str, float] | None, *, signed: bool = False, digits: int = 3) -> str:
    """An estimate of a summary for people: the value and its interval."""
    if estimate is None:
        return "-"
    value, low, high = (f"{estimate[name]:{'+' if signed else ''}.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _to_json(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
