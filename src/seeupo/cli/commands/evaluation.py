"""`seeupo eval`: run an evaluation with a progress bar, and show its results."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seeupo.callbacks import Callback
from seeupo.cli.options import checkpoint_option, env_options, trust_options
from seeupo.cli.terminal import Terminal, echo, echo_json

if TYPE_CHECKING:
    from seeupo.evaluation.results import Evaluation


RESULTS = Path("runs/eval")
"""Folder of result files without --out."""


@click.command("eval")
@click.argument("policy", required=False)
@checkpoint_option
@click.option("--env", "environment", help="Environment: a name or module:Factory.")
@click.option("--split", help="Task split.  [default: the last one]")
@env_options
@trust_options
@click.option("--tasks", type=click.IntRange(min=1), help="Maximum number of tasks.  [default: all]")
@click.option(
    "--attempts", type=click.IntRange(min=1), default=4, show_default=True, help="Number of attempts per task."
)
@click.option("-k", type=click.IntRange(min=1), default=4, show_default=True, help="k in avg@k and pass@k.")
@click.option(
    "--temperature", type=click.FloatRange(min=0),
    help="Sampling temperature; 0 means greedy.  [default: 1.0, or the run's]",
)  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum response length.  [default: 256, or the run's]")
@click.option("--max-turns", type=click.IntRange(min=1), help="Maximum number of turns.  [default: 10, or the run's]")
@click.option("--plain", is_flag=True, default=None, help="Use the plain template, without reasoning.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Concurrent episodes.  [default: 32, or the run's]")
@click.option("--endpoint", metavar="URL", help="OpenAI-compatible server, up to /v1, to evaluate instead of POLICY.")
@click.option("--model", help="Name of the model at the endpoint.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Result file.")
@click.option("--resume", is_flag=True, help="Complete an existing result file: run what is missing or has failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--compare", nargs=2, type=click.Path(dir_okay=False, path_type=Path), metavar="A B",
    help="Compare two result files, paired over tasks, and exit.",
)  # fmt: skip
def eval_command(
    *,
    compare: tuple[Path, Path] | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    trust: tuple[str, ...],
    unsandboxed: bool,
    **options: Any,
) -> None:
    """Evaluate POLICY in an environment: avg@k and pass@k with confidence intervals.

    POLICY is a run directory, a model folder or name, `expert` or `random`. A run is evaluated in its own environment
    and with its own settings by default. The API key of an endpoint is read from OPENAI_API_KEY.
    """
    from seeupo.cli.trust import permissions_for
    from seeupo.envs.trust import named_code
    from seeupo.evaluation.evaluate import resolve_options, run_evaluation

    if compare is not None:
        show_comparison(*compare, as_json=as_json)
        return
    resolved = resolve_options(**options)
    permissions = permissions_for(
        () if resolved.environment is None else named_code(str(resolved.environment), resolved.options),
        in_process=() if resolved.program is None else (resolved.program,),
        trust=trust,
        typed=[options["environment"], options["options"]],
        unsandboxed=unsandboxed,
    )
    resolved = replace(resolved, permissions=permissions)
    with ProgressBar() as bar:
        evaluation, path = run_evaluation(resolved, out=out, folder=RESULTS, resume=resume, callback=bar)
    show_summary(evaluation, path, as_json=as_json)


class ProgressBar(Callback):
    """A progress bar on standard error, shown on a terminal only."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Terminal(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._progress.update(self._task, completed=0, total=total, description=name)

    def on_progress(self, done: int, text: str = "") -> None:
        self._progress.update(self._task, completed=done, description=text or None)

    def on_note(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)


def show_summary(evaluation: Evaluation, path: Path | None, *, as_json: bool) -> None:
    """Print the scores of an evaluation, overall and per kind of task."""
    from seeupo.core.statistics import format_estimate

    summary, plan = evaluation.summary(), evaluation.plan
    if as_json:
        echo_json({"file": str(path), "plan": asdict(plan), "summary": summary})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "tasks", f"avg@{plan.k}", f"pass@{plan.k}"):
        table.add_column(column)
    for kind, part in [("all", summary), *summary["kinds"].items()]:
        cells = (format_estimate(part[f"{name}@{plan.k}"]) for name in ("avg", "pass"))
        table.add_row(kind, str(part["tasks"]), *cells)
    params = "".join(f", {name.replace('_', ' ')} {value}" for name, value in plan.sampling.items())
    echo(f"{plan.policy} on {plan.environment}, split {plan.split}, {plan.attempts} attempts per task{params}")
    Terminal().print(table)
    stops = ", ".join(f"{name} {count}" for name, count in summary["stops"].items())
    echo(f"{summary['episodes']} episodes: {stops}; {summary['truncated_responses']} truncated responses")
    tokens = ""
    if summary["mean_action_tokens"] is not None:
        tokens = (
            f", {summary['mean_action_tokens']:.0f} sampled tokens, {summary['mean_prompt_tokens']:.0f} prompt tokens"
        )
    echo(f"per episode: {summary['mean_turns']:.1f} turns{tokens}")
    if summary["failures"]:
        echo(f"{summary['failures']} episodes failed and are not scored; run them again with --resume")
        first = next(result.failure for result in evaluation.results.values() if result.failure is not None)
        echo(f"the first failure: {first.partition(chr(10))[0]}")
    echo(f"written: {path}")


def show_comparison(one: Path, other: Path, *, as_json: bool) -> None:
    """Print the paired difference between two result files."""
    from seeupo.core.statistics import format_estimate
    from seeupo.evaluation.results import VERDICTS, Evaluation, compare, verdict_of

    evaluations = Evaluation.read(one), Evaluation.read(other)
    differences = compare(*evaluations)
    k = min(each.plan.k for each in evaluations)
    if as_json:
        echo_json(differences)
        return
    gain = differences[f"avg@{k}"]
    echo(
        f"{VERDICTS[verdict_of(differences, k)]}: the 95% interval of the difference in avg@{k} "
        f"{'is above 0' if gain['low'] > 0 else 'is below 0' if gain['high'] < 0 else 'contains 0'}"
    )
    echo(f"{other} minus {one}, paired over {differences['tasks']} tasks")
    for name, estimate in differences.items():
        if name != "tasks":
            echo(f"{name}: {format_estimate(estimate, signed=True)}")
