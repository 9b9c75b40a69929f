"""The body of `seeupo train`: show progress and print the result."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from seeupo.cli.recipe_arguments import RequestedRecipe, trust_flags
from seeupo.cli.terminal import Terminal, echo, note
from seeupo.config.schema import DEFAULT_ITERATIONS, Recipe
from seeupo.config.toml import parse_value
from seeupo.core.statistics import format_estimate
from seeupo.envs.trust import named_code
from seeupo.runs.run_directory import RECIPE, REPORT
from seeupo.training.interrupts import Interrupted
from seeupo.training.preparation import next_run_dir
from seeupo.training.run import TrainingResult, resume, train
from seeupo.training.train_display import make_display, result_line

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def run_training(
    request: RequestedRecipe, *, out: Path | None, resumed: Path | None, accept_changes: bool, unsandboxed: bool
) -> int:
    """Train or resume with a progress display, and return the exit code."""
    recipe, trust = request.recipe, request.permissions.trust
    run_dir = resumed or out or next_run_dir(request.name)
    display = make_display(Terminal(stderr=True))
    try:
        if resumed is None:
            result = train(recipe, run_dir=run_dir, trust=trust, unsandboxed=unsandboxed, progress=display)
        else:
            result = resume(
                resumed,
                changes={key: parse_value(value) for key, value in request.overrides},
                accept_changes=accept_changes,
                trust=trust,
                unsandboxed=unsandboxed,
                progress=display,
            )
    except KeyboardInterrupt as stop:
        if not (run_dir / RECIPE).exists():
            note("Stopped before the run had started; nothing was written.")
            return INTERRUPTED
        stopped = "Stopped and saved. Resume"
        if not isinstance(stop, Interrupted):
            stopped = "Stopped. Resume from the last checkpoint"
        note(f"{stopped} with: seeupo train --resume {run_dir}{trust_flags((*recipe.code, *recipe.clusters))}")
        if isinstance(stop, Interrupted) and (page := run_dir / REPORT).exists():
            note(f"The report so far: {page}")
        return INTERRUPTED
    show_result(result, recipe)
    return 0


def show_result(result: TrainingResult, recipe: Recipe) -> None:
    """Print the scores before and after, the paths of the results, and the next commands."""
    summary, k = result.summary, result.summary["k"]
    columns = [when for when in ("before", "after", "difference") if summary[when] is not None]
    table = Table(box=None, pad_edge=False)
    for column in (f"{summary['tasks']} held-out tasks", *columns):
        table.add_column(column)
    for name in (f"avg@{k}", f"pass@{k}"):
        scores = {when: summary[when][name] for when in columns}
        cells = (format_estimate(estimate, signed=when == "difference", digits=2) for when, estimate in scores.items())
        table.add_row(name, *cells)
    echo()
    for warning in summary["warnings"]:
        echo(f"warning: {warning}")
    echo(result_line(summary))
    Terminal().print(table)
    if result.policy.is_dir():
        echo(f"policy    {result.policy}  (after iteration {summary['iterations']}; loads in transformers and vLLM)")
    echo(f"best      {best_line(result)}")
    if (page := result.run_dir / REPORT).exists():
        echo(f"report    {page}  (open it in a browser)")
    echo(f"run       {result.run_dir}  (summary.json, metrics.jsonl, trajectories: docs/reference/run-directory.md)")
    program = () if recipe.agent.program is None else (recipe.agent.program,)
    flags = trust_flags((*named_code(recipe.environment.name, recipe.environment.options), *program))
    if summary["warnings"]:
        echo(f"look      seeupo agents show --model {result.run_dir}{flags}  (one rollout, token by token)")
    echo(f"evaluate  seeupo eval {result.run_dir}{flags}  (or a checkpoint: --checkpoint best)")
    echo(f"export    seeupo export {result.run_dir} OUT  (or a checkpoint: --best)")
    more = 2 * recipe.run.total_iterations or DEFAULT_ITERATIONS
    flags = trust_flags((*recipe.code, *recipe.clusters))
    echo(f"continue  seeupo train --resume {result.run_dir} --run.iterations {more}{flags}")


def best_line(result: TrainingResult) -> str:
    """Return where the policy with the best held-out score is."""
    summary = result.summary
    best = summary["best"]
    score = f"avg@{summary['k']} {best['avg']:.2f} after iteration {best['iteration']}"
    if best["iteration"] == summary["iterations"]:
        return f"the policy above  ({score})"
    if best["checkpoint"] is None:
        return f"not kept  ({score})"
    return f"{result.run_dir / best['checkpoint']}  ({score})"
