"""`seeupo train`, `plan`, `report`, `export`, `recipes` and `algorithms`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from seeupo.cli.options import trust_options
from seeupo.cli.terminal import Terminal, echo, echo_json, echo_text


@click.command("train", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--agent-program", metavar="REFERENCE",
    help="Program that runs the episodes, such as my_agent.py:solve; short for --agent.program.",
)  # fmt: skip
@click.option(
    "--tasks", type=click.Path(path_type=Path), metavar="FILE",
    help="Tasks of an agent program, one JSON object per line; short for the environment tasks.",
)  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Run directory, new or empty.")
@click.option("--resume", "resumed", type=click.Path(path_type=Path), metavar="RUN", help="Resume a run.")
@click.option(
    "--accept-changes", is_flag=True,
    help="With --resume: use and record settings that differ from those of the run so far, or a loss of metrics.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the resolved recipe without training.")
@trust_options
def train_command(
    *,
    recipe: str | None,
    overrides: tuple[str, ...],
    agent_program: str | None,
    tasks: Path | None,
    out: Path | None,
    resumed: Path | None,
    accept_changes: bool,
    dry_run: bool,
    trust: tuple[str, ...],
    unsandboxed: bool,
) -> None:
    """Train an agent.

    RECIPE is a name (see `seeupo recipes list`) or a TOML file; tiny-pocket by default, or custom with another
    --environment.name. Override any key of the recipe with --section.key VALUE, for example --run.seed 1 or
    --environment.name my_module:MyFactory. With --agent-program, the default is agent.
    Ctrl-C finishes the current step and saves; a second Ctrl-C stops at once.
    """
    from seeupo.cli.recipe_arguments import requested_recipe

    recipe, overrides = separate_overrides(recipe, overrides)
    if tasks is not None:
        overrides = ("--environment.name", "tasks", "--environment.options.path", str(tasks), *overrides)
    if agent_program is not None:
        recipe = recipe or ("agent" if resumed is None else None)
        overrides = ("--agent.program", agent_program, "--agent.reasoning", "false", *overrides)
    if dry_run and resumed is not None:
        raise click.UsageError("--dry-run is for new runs; remove --resume")
    if accept_changes and resumed is None:
        raise click.UsageError("--accept-changes is for --resume; a new run has nothing to change")
    if resumed is not None:
        from seeupo.runs.run_directory import RECIPE, RunDirectory

        if recipe is not None or out is not None:
            raise click.UsageError("--resume uses the run's own recipe and directory; leave out RECIPE and --out")
        recipe = str(RunDirectory.open(resumed).path / RECIPE)
    request = requested_recipe(recipe, overrides, trust=trust, unsandboxed=unsandboxed)
    if dry_run:
        from seeupo.cli.plan_command import show_plan

        show_plan(request, dry_run=True)
    else:
        from seeupo.cli.train_command import run_training

        sys.exit(
            run_training(request, out=out, resumed=resumed, accept_changes=accept_changes, unsandboxed=unsandboxed)
        )


def separate_overrides(recipe: str | None, overrides: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return recipe and overrides; without a recipe, click takes the first override for it."""
    return (None, (recipe, *overrides)) if recipe is not None and recipe.startswith("--") else (recipe, overrides)


@click.command("plan", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="Number of GPUs; 0 plans for CPUs.")
@click.option(
    "--gpu-memory", type=click.FloatRange(min=0, min_open=True), metavar="GB",
    help="Memory of each GPU in GiB.  [default: that of this machine's GPUs, or 80]",
)  # fmt: skip
@trust_options
def plan_command(
    *,
    recipe: str | None,
    overrides: tuple[str, ...],
    gpus: int | None,
    gpu_memory: float | None,
    trust: tuple[str, ...],
    unsandboxed: bool,
) -> None:
    """Estimate memory and time of RECIPE, and what to change if it does not fit.

    RECIPE and --section.key VALUE are as in `seeupo train`. No weights and no GPU are needed.
    """
    from seeupo.cli.plan_command import show_plan
    from seeupo.cli.recipe_arguments import requested_recipe

    recipe, overrides = separate_overrides(recipe, overrides)
    show_plan(
        requested_recipe(recipe, overrides, trust=trust, unsandboxed=unsandboxed), gpus=gpus, gpu_memory=gpu_memory
    )


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Output file.  [default: report.html in the run directory, or here for several runs]",
)  # fmt: skip
@click.option(
    "--max-mb", type=click.IntRange(min=1, max=27), default=25, show_default=True,
    help="Maximum size of the data in MB; larger runs are reduced to a sample of their trajectories.",
)  # fmt: skip
def report(*, runs: tuple[Path, ...], out: Path | None, max_mb: int) -> None:
    """Write an HTML report of one or more runs.

    It shows curves, turns and the credit of every trajectory; several runs are shown side by side. Open the file in a
    browser; it needs no network and no server. For interrupted or damaged runs, the report lists what is missing.
    """
    from seeupo.report.write import write_report
    from seeupo.runs.run_directory import REPORT

    page = write_report(runs, out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT)), max_bytes=max_mb * 10**6)
    for run, sentence, missing in zip(runs, page.sentences, page.missing, strict=True):
        echo(sentence if len(runs) == 1 else f"{run}: {sentence}")
        for text in missing:
            echo(f"  missing: {text}")
    echo(f"report  {page.path}  (open it in a browser)")
    echo(f"{page.size / 10**6:.1f} MB, {page.kept} of {page.total} trajectories included")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--best", is_flag=True, help="Export the best checkpoint instead of the final policy.")
@click.option("--checkpoint", type=click.IntRange(min=0), metavar="N", help="Export the checkpoint after N iterations.")
@click.option("--merge", is_flag=True, help="Merge LoRA adapters into the weights of their base model.")
def export_command(*, run: Path, out: Path, best: bool, checkpoint: int | None, merge: bool) -> None:
    """Write the policy of RUN into the new folder OUT, for transformers and vLLM.

    The folder has weights, tokenizer, chat template and model card. A run with LoRA gives an adapter folder for peft,
    or full weights with --merge.
    """
    from seeupo.runs.export import export
    from seeupo.training.interrupts import terminable

    if best and checkpoint is not None:
        raise click.UsageError("--best and --checkpoint exclude each other; remove one")
    with terminable():
        exported = export(run, out, checkpoint="best" if best else checkpoint, merge=merge)
    kind = "full weights" if exported.base is None else f"an adapter for {exported.base}"
    echo(f"{exported.path}: the policy after {exported.iteration} iterations, {kind}")


@click.group()
def recipes() -> None:
    """List and print the recipes that come with this package."""


@recipes.command("list")
def list_recipes() -> None:
    """List the recipes with a one-line description."""
    from seeupo.config.loader import recipe_names, recipe_text

    width = max(map(len, recipe_names()))
    for name in recipe_names():
        echo(f"{name:<{width}}  {recipe_text(name).partition(chr(10))[0].removeprefix('# ')}")


@recipes.command("show")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Print a recipe. `seeupo recipes show NAME > my.toml` copies it as a starting point."""
    from seeupo.config.loader import recipe_text

    echo_text(recipe_text(name).removesuffix("\n"))


@recipes.command("schema")
def show_schema() -> None:
    """Print the JSON schema of a recipe, for editors."""
    from seeupo.config.reference import recipe_schema

    echo_json(recipe_schema(), indent=2)


@click.group()
def algorithms() -> None:
    """List the training algorithms, show their formulas and options, and write one of your own."""


@algorithms.command("list")
def list_algorithms() -> None:
    """List the algorithms, each in one line."""
    from seeupo.cli.algorithm_cards import show_list

    show_list(Terminal())


@algorithms.command("new")
@click.argument("name")
def new_algorithm(name: str) -> None:
    """Write NAME.py, the skeleton of a custom algorithm, and test_NAME.py into the current directory."""
    from seeupo.utils.skeletons import ALGORITHM

    reference, (module, test) = ALGORITHM.write(name, Path())
    echo(f"written  {module}  (a small working algorithm; replace its advantages and objective with yours)")
    echo(f"written  {test}  (run it with: pytest {test})")
    echo(f"options  seeupo algorithms show {reference}")
    echo(f"train    seeupo train --algorithm.name {reference}")


@algorithms.command("show")
@click.argument("name")
def show_algorithm(name: str) -> None:
    """Print the method, formula and options of an algorithm.

    NAME may be that of an installed package's algorithm, or a class: module:Class or path/to/file.py:Class.
    """
    from seeupo.cli.algorithm_cards import show_algorithm
    from seeupo.config.algorithms import is_reference, plugin_names, shipped_algorithms
    from seeupo.errors import UserError, suggest

    known = [*shipped_algorithms(), *plugin_names()]
    if name not in known and not is_reference(name):
        raise UserError(f"unknown algorithm {name[:60]!r}; {suggest(name[:60].lower(), known)}")
    show_algorithm(name, Terminal())
