"""A process that trains runs of a comparison, one after another, as its parent asks on standard input.

Requests and messages are JSON lines. The end of standard input ends the process at once, so that no run outlives a
parent that was killed. A run that was stopped is resumed from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from seeupo.callbacks import Callback
from seeupo.comparison.result_store import REMOVED, RunResult, weights_digest, write_result
from seeupo.config.changes import recipe_changes
from seeupo.config.loader import parse_file, read_recipe, recipe_from_table, recipe_to_table
from seeupo.config.schema import Recipe
from seeupo.errors import RunError, TrainingError, UserError, first_line
from seeupo.runs.run_directory import RECIPE, RunDirectory
from seeupo.training.run import resume, train
from seeupo.utils.diagnostics import print_error, visible_diagnostics
from seeupo.utils.text import one_line

Send = Callable[[Mapping[str, Any]], None]
DIGITS = 6
"""Digits of rewards in a result."""


class Reporter(Callback):
    """Sends the progress of a run to the parent."""

    def __init__(self, send: Send) -> None:
        self.send = send

    def on_record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "iteration":
            self.send({"text": f"iteration {record['iteration']}"})
        elif record["kind"] == "warm_start":
            self.send({"text": f"warm start, step {record['step']}"})


def train_run(job: Mapping[str, Any], send: Send) -> None:
    """Train the run that a request describes, and write its result."""
    recipe = recipe_from_table(parse_file(job["recipe"], "the request"))
    if job["policy"] is not None:
        recipe = replace(recipe, model=replace(recipe.model, name=job["policy"]))
    start = "" if job["policy"] is None else weights_digest(Path(job["policy"]))
    work = Path(job["work"])
    options = {"trust": job["trust"], "unsandboxed": job["unsandboxed"], "callback": Reporter(send), "progress": False}
    diverged = None
    try:
        summary = _train_or_resume(recipe, work, options)
    except TrainingError as error:
        if not isinstance(error.__cause__, FloatingPointError):
            raise
        diverged, summary = first_line(error.__cause__), {}
    result = RunResult(
        arm=job["arm"],
        seed=job["seed"],
        settings=job["settings"],
        start=start,
        diverged=diverged,
        **curves_and_cost(work, summary),
    )
    if job["keep_policy"] is not None:
        policy = Path(job["keep_policy"])
        shutil.rmtree(policy, ignore_errors=True)
        policy.parent.mkdir(parents=True, exist_ok=True)
        (work / "policy").rename(policy)
    write_result(Path(job["result"]), result)
    if not job["keep_run"]:
        _remove(work)


def _remove(work: Path) -> None:
    """Remove the directory of a finished run; what a killed process leaves of it, the next comparison removes."""
    removed = work.with_name(f".{work.name}{REMOVED}")
    with suppress(OSError):
        work.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _train_or_resume(recipe: Recipe, work: Path, options: Mapping[str, Any]) -> Mapping[str, Any]:
    if (work / RECIPE).exists():
        try:
            _check_recipe(work, recipe)
            return resume(work, **options).summary
        except UserError as error:
            if isinstance(error.__cause__, FloatingPointError):
                raise
            print(one_line(f"{work} cannot be resumed and starts again: {error}"), file=sys.stderr)
    shutil.rmtree(work, ignore_errors=True)
    return train(recipe, run_dir=work, **options).summary


def _check_recipe(work: Path, recipe: Recipe) -> None:
    """Raise unless a run directory, which may come from elsewhere, has the recipe that was requested."""
    stored = read_recipe(str(RunDirectory.open(work).path / RECIPE))
    if changes := recipe_changes(recipe_to_table(stored), recipe_to_table(recipe)):
        raise RunError("; ".join(change.refusal for change in changes))


def curves_and_cost(work: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return curves and cost of a run directory; without a summary, of the iterations that it has."""
    records = list(RunDirectory.open(work).metrics()) if (work / RECIPE).exists() else []
    iterations = [record for record in records if record["kind"] == "iteration"]
    seconds = summary.get("seconds") or {
        phase: sum(record["timings"][phase] for record in iterations) for phase in ("collect", "update")
    }
    tokens = summary.get("tokens") or {
        name: sum(record[name] for record in iterations) for name in ("action_tokens", "prompt_tokens", "update_tokens")
    }
    return {
        "rewards": [round(record["reward_mean"], DIGITS) for record in iterations],
        "successes": [round(record["success"], DIGITS) for record in iterations],
        "evaluations": [
            [record["iteration"], round(_average(record), DIGITS)]
            for record in records
            if record["kind"] == "evaluation"
        ],
        "optimizer_steps": sum(int(record["algorithm"].get("optimizer_steps", 0)) for record in iterations),
        "tokens": sum(tokens.values()),
        "seconds": {phase: round(spent, 3) for phase, spent in seconds.items()},
    }


def _average(record: Mapping[str, Any]) -> float:
    """Return avg@k of an evaluation; 0 if no task was scored."""
    averages: Sequence[Any] = [value for name, value in record.items() if name.startswith("avg@")]
    return float(averages[0]["value"]) if averages and averages[0] else 0.0


def main() -> None:
    """Train the requested runs until standard input ends."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no message
    lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        with lock:
            print(json.dumps(message), file=messages, flush=True)

    jobs: queue.Queue[Mapping[str, Any]] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(sys.stdin, jobs), daemon=True).start()
    while True:
        job = jobs.get()
        try:
            train_run(job, send)
        except UserError as error:
            send({"error": list(error.lines)})
        except Exception as error:
            print_error(error)
            send({"error": [f"{type(error).__name__}: {first_line(error)}"]})
        else:
            send({"done": True})


def _read_jobs(requests: TextIO, jobs: queue.Queue[Mapping[str, Any]]) -> None:
    for line in requests:
        jobs.put(json.loads(line))
    os._exit(0)  # without waiting for the run


if __name__ == "__main__":
    with visible_diagnostics():
        main()
