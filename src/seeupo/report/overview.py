"""What the top of the page says of a run: did it work, what was it, what is wrong with it, and how to repeat it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from seeupo.errors import EvaluationError
from seeupo.report.curves import curves, held_out_summaries, k_of, turn_maps, turns_of
from seeupo.report.packing import rounded
from seeupo.report.trajectories import Kept
from seeupo.runs.evaluations import VERDICTS, compare, verdict_of
from seeupo.runs.reader import HeldOut, ReadRun
from seeupo.training.alarms import Alarms
from seeupo.utils.numbers import finite_number


def overview_of(run: ReadRun, name: str, kept: Kept) -> dict[str, Any]:
    """A run as the page takes it; `name` is its own among the runs of the page."""
    k, difference = k_of(run), _difference(run)
    scores = _scores(run, k, difference)
    verdict = verdict_of(difference, k)
    return {
        "name": name,
        "model": model_of(run),
        "environment": environment_of(run),
        "algorithm": algorithm_of(run),
        "command": command_of(run),
        "verdict": verdict,
        "sentence": _sentence(run, verdict, k, difference),
        "k": k,
        "scores": scores,
        "facts": _facts(run),
        "missing": list(dict.fromkeys(run.missing)),
        "warnings": _warnings(run),
        "curves": curves(run, kept.measured),
        "turn_maps": turn_maps(run.records.get("iteration", [])),
        "trajectories": kept.to_json(),
    }


def model_of(run: ReadRun) -> str:
    """Its name; of a folder on somebody's disk the last part, as a page may be shown to anybody."""
    name = str(run.setting("model", "name") or run.summary.get("model") or "an unknown model")
    return PurePath(name).name if name.startswith(("/", "~", ".")) else name


def environment_of(run: ReadRun) -> str:
    own, asked = run.env_info.get("custom_environment"), run.setting("environment", "name")
    played = [each.evaluation.plan.environment for each in run.evaluations]
    return str(own or asked or (played[-1] if played else "an unknown environment"))


def algorithm_of(run: ReadRun) -> str:
    return str(run.setting("algorithm", "name") or run.summary.get("algorithm") or "an unknown algorithm")


def command_of(run: ReadRun) -> str:
    """What repeats the run."""
    folder, again = _shown_paths(run.path)
    recipe = f"{folder}/recipe.toml"
    if run.env_info.get("custom_environment"):
        return f"seeupo.train({recipe!r}, environment=..., folder={again!r})"
    return shlex.join(["seeupo", "train", recipe, "--out", again])


def _shown_paths(path: Path) -> tuple[str, str]:
    """A folder and one beside it, as somebody else may read them: nothing of this machine's disk is shown."""
    whole, here = path.resolve(), Path.cwd()
    if whole == here:
        return ".", f"../{whole.name}-again"
    folder = whole.relative_to(here).as_posix() if whole.is_relative_to(here) else whole.name
    return folder, f"{folder}-again"


def _difference(run: ReadRun) -> Mapping[str, Any] | None:
    """The last evaluation minus the first, or None if they cannot be compared."""
    first, last = run.first_and_last
    if first is None or last is None:
        return None
    try:
        return compare(first.evaluation, last.evaluation)
    except (EvaluationError, ValueError, TypeError):
        run.missing.append("The first and the last evaluation cannot be compared: they are of different tasks.")
        return None


def _scores(run: ReadRun, k: int | None, difference: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    first, last = run.first_and_last
    found = []
    for name in (f"avg@{k}", f"pass@{k}"):
        row = {
            "name": name,
            "before": None if first is None else _estimate(first.summary.get(name)),
            "after": None if last is None else _estimate(last.summary.get(name)),
            "difference": None if difference is None else _estimate(difference.get(name)),
        }
        if row["before"] or row["after"]:
            found.append(row)
    return found


def _estimate(estimate: Mapping[str, float] | None) -> dict[str, float | None] | None:
    return None if estimate is None else {end: rounded(estimate[end]) for end in ("value", "low", "high")}


def _sentence(run: ReadRun, verdict: str, k: int | None, difference: Mapping[str, Any] | None) -> str:
    """Return one sentence on what the run achieved."""
    who = f"{model_of(run)} on {environment_of(run)}"
    first, last = run.first_and_last
    if verdict == "inconclusive" or difference is None or first is None or last is None:
        score = f"avg@{k}"
        for each in (last, first):
            if each is not None and (found := each.summary.get(score)):
                return (
                    f"{VERDICTS['inconclusive']}: {who} has {score} {found['value']:.2f} {_when(run, each)}, "
                    "and there is nothing to compare it with."
                )
        return f"{VERDICTS['inconclusive']}: {who} was not evaluated on held-out tasks."
    before, after = first.summary[f"avg@{k}"]["value"], last.summary[f"avg@{k}"]["value"]
    gain = difference[f"avg@{k}"]
    # An end that is not 0 must not look like it.
    digits = 2 if all(abs(gain[end]) >= 0.005 for end in ("low", "high")) else 3
    value, low, high = (f"{gain[end]:+.{digits}f}" for end in ("value", "low", "high"))
    whole = {result.score for each in (first, last) for result in each.evaluation.results.values()} <= {None, 0, 1}
    scores = f"solves {after:.2f} of held-out attempts" if whole else f"scores {after:.2f} in held-out attempts"
    return (
        f"{VERDICTS[verdict]}: {who} {scores} {_when(run, last)}, {before:.2f} {_when(run, first)} "
        f"(difference {value}, 95% interval {low} to {high}, {difference['tasks']} tasks)."
    )


def _when(run: ReadRun, held_out: HeldOut) -> str:
    if held_out.iteration == 0:
        return "before"
    if run.ended and held_out.iteration >= run.last_iteration:
        return "after training"
    return f"after {held_out.iteration} iterations"


def _facts(run: ReadRun) -> list[list[str]]:
    """What one wants to know of a run at a glance, as far as it is known."""
    wanted = run.setting("run", "iterations")
    done = f"{run.last_iteration} of {wanted}" if isinstance(wanted, int) else str(run.last_iteration)
    tasks, size = run.setting("collect", "tasks"), run.setting("collect", "group_size")
    first, last = run.first_and_last
    plan = next((each.evaluation.plan for each in (last, first) if each is not None), None)
    versions, git = run.env_info.get("versions"), run.env_info.get("git")
    found: list[tuple[str, object]] = [
        ("Iterations", done),
        ("Ended because", run.summary.get("reason")),
        ("Seed", run.setting("run", "seed")),
        ("Algorithm", algorithm_of(run)),
        ("Order of updates", run.setting("algorithm", "order")),
        ("Attempts per iteration", f"{tasks} tasks x {size}" if tasks and size else None),
        ("Learning rate", run.setting("optimizer", "learning_rate")),
        ("Held-out attempts per task", None if plan is None else plan.attempts),
        ("Held-out tasks (hash)", None if plan is None else plan.panel),
        ("Time", _minutes(run)),
        ("Tokens sampled", _tokens(run)),
        ("Threads", run.env_info.get("threads")),
        ("Versions", _pairs(versions, ("seeupo", "torch", "python"))),
        ("Commit", _commit(git)),
    ]
    return [[label, str(value)] for label, value in found if value is not None and value != ""]


def _minutes(run: ReadRun) -> str | None:
    phases = run.summary.get("seconds")
    seconds = [finite_number(value) for value in phases.values()] if isinstance(phases, Mapping) else []
    if not seconds:
        timings = [each.get("timings") for kind in ("iteration", "evaluation") for each in run.records.get(kind, [])]
        names = ("collect", "update", "seconds")
        seconds = [finite_number(each.get(name)) for each in timings if isinstance(each, Mapping) for name in names]
    total = sum(each for each in seconds if each is not None)
    return f"{total / 60:.1f} minutes" if total else None


def _tokens(run: ReadRun) -> str | None:
    counts = [finite_number(record.get("action_tokens")) for record in run.records.get("iteration", [])]
    total = sum(each for each in counts if each is not None)
    return f"{total:,.0f}" if total else None


def _pairs(table: object, names: tuple[str, ...]) -> str | None:
    return ", ".join(f"{n} {table[n]}" for n in names if table.get(n)) if isinstance(table, Mapping) else None


def _commit(git: object) -> str | None:
    if not isinstance(git, Mapping) or not git.get("commit"):
        return None
    return f"{str(git['commit'])[:12]}{' with changes' if git.get('dirty') else ''}"


def _warnings(run: ReadRun) -> list[dict[str, Any]]:
    """What is wrong in the records, in order: what the alarms say, and attempts of evaluations that failed."""
    alarms = Alarms()
    found = [
        {"iteration": record["iteration"], "text": text.partition(": ")[2]}
        for record in run.records.get("iteration", [])
        if (heard := _for_alarms(record)) is not None
        for text in alarms.check(heard)
    ]
    for iteration, summary in held_out_summaries(run).items():
        failures, episodes = finite_number(summary.get("failures")), finite_number(summary.get("episodes"))
        if failures:
            text = (
                f"{failures:.0f} of {episodes or failures:.0f} attempts of the evaluation failed by fault of the "
                "infrastructure and were not scored. `seeupo envs check` finds most causes."
            )
            found.append({"iteration": iteration, "text": text})
    return sorted(found, key=lambda each: each["iteration"])


def _for_alarms(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A record as the alarms heard it in training; None if they cannot make sense of it."""
    if finite_number(record.get("success")) is None:
        return None
    algorithm = record.get("algorithm")
    return {
        **record,
        "entropy": finite_number(record.get("entropy")),
        "algorithm": algorithm if isinstance(algorithm, Mapping) else {},
        # Files have null for what is no finite_number.
        "turns": [
            {**turn, "grad_norm": math.nan} if "grad_norm" in turn and turn["grad_norm"] is None else turn
            for turn in turns_of(record)
        ],
    }
