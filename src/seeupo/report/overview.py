"""The overview of a run at the top of the page: verdict, scores, details, warnings, and the command to repeat it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from seeupo.config.changes import changes_text
from seeupo.errors import EvaluationError
from seeupo.evaluation.results import VERDICTS, compare, verdict_of
from seeupo.report.curves import curves, evaluation_k, evaluation_summaries, phase_seconds, turn_maps, turn_records
from seeupo.report.packing import rounded
from seeupo.report.selection import Selection
from seeupo.runs.alarms import Alarms, untrained_warning
from seeupo.runs.metric_history import GAP_BOUNDS
from seeupo.runs.reader import StoredEvaluation, StoredRun
from seeupo.utils.numbers import finite_number
from seeupo.utils.text import counted


def run_overview(run: StoredRun, name: str, selection: Selection) -> dict[str, Any]:
    """Return the overview of a run; `name` is unique in the page."""
    k, difference = evaluation_k(run), _difference(run)
    verdict = verdict_of(difference, k)
    return {
        "name": name,
        "model": model_name(run),
        "environment": environment_name(run),
        "algorithm": algorithm_name(run),
        "command": repeat_command(run),
        "verdict": verdict,
        "verdict_label": VERDICTS[verdict],
        "sentence": _sentence(run, k, difference),
        "stopped": _stopped(run),
        "k": k,
        "scores": _scores(run, k, difference),
        "details": _details(run),
        "missing": list(run.missing),
        "warnings": _warnings(run),
        "curves": curves(run, selection.scores),
        "turn_maps": turn_maps(run.records.get("iteration", [])),
        "trajectories": selection.to_json(),
    }


def model_name(run: StoredRun) -> str:
    """Return the name of the model, without the path of a local folder: the page may be published."""
    name = str(run.setting("model", "name") or run.summary.get("model") or "an unknown model")
    return PurePath(name).name if name.startswith(("/", "~", ".")) else name


def environment_name(run: StoredRun) -> str:
    custom, setting = run.env_info.get("custom_environment"), run.setting("environment", "name")
    return str(custom or setting or "an unknown environment")


def algorithm_name(run: StoredRun) -> str:
    return str(run.setting("algorithm", "name") or run.summary.get("algorithm") or "an unknown algorithm")


def repeat_command(run: StoredRun) -> str:
    """Return the command that repeats the run, without revealing absolute paths."""
    run_dir, is_here = _shown_directory(run)
    new_dir = f"../{run.name}-again" if is_here else f"{run_dir}-again"
    recipe = f"{run_dir}/recipe.toml"
    if run.env_info.get("custom_environment"):
        return f"seeupo.train({recipe!r}, environment=..., run_dir={new_dir!r})"
    return shlex.join(["seeupo", "train", recipe, "--out", new_dir])


def _stopped(run: StoredRun) -> str | None:
    """Return where the user stopped the run, and the command that continues it."""
    if not run.stopped:
        return None
    run_dir, _ = _shown_directory(run)
    command = shlex.join(["seeupo", "train", "--resume", run_dir])
    if run.env_info.get("custom_environment"):
        command = f"seeupo.resume({run_dir!r}, environment=...)"
    planned = run.setting("run", "iterations")
    of = f" of {planned}" if isinstance(planned, int) else ""
    when = f"after iteration {run.last_iteration}{of}" if run.last_iteration else "before the first iteration"
    return f"Stopped by you {when}; resume with {command}"


def _shown_directory(run: StoredRun) -> tuple[str, bool]:
    """Return the run directory relative to the working directory, or only its name, and whether they are the same."""
    path, here = run.path.resolve(), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name, path == here


def _difference(run: StoredRun) -> Mapping[str, Any] | None:
    """Return the last evaluation minus the first, or None if they cannot be compared."""
    first, last = run.first_and_last
    if first is None or last is None:
        return None
    try:
        return compare(first.evaluation, last.evaluation)
    except (EvaluationError, ValueError, TypeError):
        run.missing.append("The first and the last evaluation cannot be compared: they use different tasks.")
        return None


def _scores(run: StoredRun, k: int | None, difference: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    first, last = run.first_and_last
    rows = []
    for name in (f"avg@{k}", f"pass@{k}"):
        row = {
            "name": name,
            "before": None if first is None else _estimate(first.summary.get(name)),
            "after": None if last is None else _estimate(last.summary.get(name)),
            "difference": None if difference is None else _estimate(difference.get(name)),
        }
        if row["before"] or row["after"]:
            rows.append(row)
    return rows


def _estimate(estimate: Mapping[str, float] | None) -> dict[str, float | None] | None:
    return None if estimate is None else {end: rounded(estimate[end]) for end in ("value", "low", "high")}


def _sentence(run: StoredRun, k: int | None, difference: Mapping[str, Any] | None) -> str:
    """Return one sentence on what the run achieved."""
    policy = f"{model_name(run)} on {environment_name(run)}"
    first, last = run.first_and_last
    gain = None if difference is None else difference.get(f"avg@{k}")
    if difference is None or gain is None or first is None or last is None:
        name = f"avg@{k}"
        for stored in (last, first):
            if stored is not None and (score := stored.summary.get(name)):
                text = f"{name} {score['value']:.2f} {_when(run, stored)}"
                return f"{policy} has {text}, and there is nothing to compare it with."
        return f"{policy} was not evaluated on held-out tasks."
    before, after = first.summary[f"avg@{k}"]["value"], last.summary[f"avg@{k}"]["value"]
    # An end that is not 0 must not be printed as 0.
    digits = 2 if all(abs(gain[end]) >= 0.005 for end in ("low", "high")) else 3
    value, low, high = (f"{gain[end]:+.{digits}f}" for end in ("value", "low", "high"))
    attempts = [*first.evaluation.results.values(), *last.evaluation.results.values()]
    binary = {attempt.score for attempt in attempts} <= {None, 0, 1}
    scores = f"solves {after:.2f} of held-out attempts" if binary else f"scores {after:.2f} in held-out attempts"
    return (
        f"{policy} {scores} {_when(run, last)}, {before:.2f} {_when(run, first)} "
        f"(difference {value}, 95% interval {low} to {high}, {difference['tasks']} tasks)."
    )


def _when(run: StoredRun, evaluation: StoredEvaluation) -> str:
    if evaluation.iteration == 0:
        return "before"
    if run.ended and evaluation.iteration >= run.last_iteration:
        return "after training"
    return f"after {counted(evaluation.iteration, 'iteration')}"


def _details(run: StoredRun) -> list[list[str]]:
    """Return settings, time and versions as pairs of label and text; unknown values are left out."""
    planned = run.setting("run", "iterations")
    of = f" of {planned}" if isinstance(planned, int) else ""
    tasks = run.setting("collect", "tasks")
    size = run.setting("collect", "group_size")
    plan = run.evaluations[-1].evaluation.plan if run.evaluations else None
    versions = _mapping(run.env_info.get("versions"))
    named_versions = [f"{name} {versions[name]}" for name in ("seeupo", "torch", "python") if versions.get(name)]
    git = _mapping(run.env_info.get("git"))
    tokens = _total(record.get("action_tokens") for record in run.records.get("iteration", []))
    details: list[tuple[str, object]] = [
        ("Iterations", f"{run.last_iteration}{of}"),
        ("Stop reason", run.summary.get("reason")),
        ("Best checkpoint", _best(run)),
        ("Seed", run.setting("run", "seed")),
        ("Algorithm", algorithm_name(run)),
        ("Update order", run.setting("algorithm", "order")),
        ("Attempts per iteration", f"{tasks} tasks x {size} attempts" if tasks and size else None),
        ("Learning rate", run.setting("optimizer", "learning_rate")),
        ("Changed on resume", changes_text(run.env_info.get("changes"))),
        ("Held-out attempts per task", None if plan is None else plan.attempts),
        ("Held-out task panel", None if plan is None else plan.panel),
        ("Time", _minutes(run)),
        ("Sampled tokens", f"{tokens:,.0f}" if tokens else None),
        ("Threads", run.env_info.get("threads")),
        ("Versions", ", ".join(named_versions)),
        ("Commit", f"{str(git.get('commit') or '')[:12]}{' (modified)' if git.get('dirty') else ''}"),
    ]
    return [[label, str(value)] for label, value in details if value is not None and value != ""]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _total(values: Iterable[object]) -> float:
    """Return the sum of the finite numbers among values."""
    return sum((number for value in values if (number := finite_number(value)) is not None), 0.0)


def _best(run: StoredRun) -> str | None:
    """Return the checkpoint with the best held-out score, as the summary names it."""
    best = _mapping(run.summary.get("best"))
    if not best.get("checkpoint"):
        return None
    score = finite_number(best.get("avg"))
    shown = "" if score is None else f", avg@{evaluation_k(run)} {score:.2f}"
    return f"{best['checkpoint']} (after iteration {best.get('iteration')}{shown})"


def _minutes(run: StoredRun) -> str | None:
    if phases := _mapping(run.summary.get("seconds")):
        total = _total(phases.values())
    else:
        total = _total(point[1] for points in phase_seconds(run).values() for point in points)
    return f"{total / 60:.1f} minutes" if total else None


def _warnings(run: StoredRun) -> list[dict[str, Any]]:
    """Return the alarms of training and the failures of evaluations, in order of their iterations."""
    dtype = str(run.setting("model", "dtype"))
    alarms = Alarms(dtype if dtype in GAP_BOUNDS else "float32")
    warnings = [
        (record["iteration"], text.partition(": ")[2])
        for record in [*run.records.get("warm_start", []), *run.records.get("evaluation", [])]
        for text in alarms.check(record)
    ]
    warnings += [
        (record["iteration"], text.partition(": ")[2])
        for record in run.records.get("iteration", [])
        if (complete := _record_for_alarms(record)) is not None
        for text in alarms.check(complete)
    ]
    for iteration, summary in evaluation_summaries(run).items():
        failures, episodes = finite_number(summary.get("failures")), finite_number(summary.get("episodes"))
        if failures:
            text = (
                f"{failures:.0f} of {episodes or failures:.0f} evaluation attempts ended in an infrastructure failure "
                "and were not scored. `seeupo envs check` finds most causes."
            )
            warnings.append((iteration, text))
    records = [*run.records.get("warm_start", []), *run.records.get("iteration", [])]
    if (untrained := untrained_warning(records)) is not None:
        warnings.append((run.last_iteration, untrained))
    warnings.sort(key=lambda warning: warning[0])
    return [{"iteration": iteration, "text": text} for iteration, text in warnings]


def _record_for_alarms(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a record as training passed it to the alarms; None if a required value is missing."""
    if finite_number(record.get("success")) is None:
        return None
    return {
        **record,
        "entropy": finite_number(record.get("entropy")),
        "algorithm": _mapping(record.get("algorithm")),
        # Files contain null instead of NaN.
        "turns": [
            {**turn, "grad_norm": math.nan} if "grad_norm" in turn and turn["grad_norm"] is None else turn
            for turn in turn_records(record)
        ],
    }
