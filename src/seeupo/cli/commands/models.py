"""`seeupo models`: list, download and check models."""

from __future__ import annotations

import click

from seeupo.cli.terminal import echo, echo_text, note


@click.group()
def models() -> None:
    """List, download and check models."""


@models.command("list")
def list_models() -> None:
    """List the models of the catalog and whether they are downloaded."""
    from seeupo.models.catalog import CATALOG, downloaded_folder

    echo("tiny          created when it is used, from a size and a seed")
    for name, model in CATALOG.items():
        folder = downloaded_folder(name)
        state = f"in {folder}" if folder else f"not downloaded ({model.download_bytes / 1e6:.0f} MB)"
        echo(f"{name:<13} {model.hub_id}, {model.license}; {state}")


@models.command("fetch")
@click.argument("name")
def fetch_model(name: str) -> None:
    """Download the model NAME into the cache, verified and converted."""
    from seeupo.models.catalog import fetch

    folder = fetch(name, on_note=note)
    echo(f"{name} is in {folder}")


@models.command("check")
@click.argument("name")
@click.option("--prompt", default="What is the capital of France?", show_default=True, help="Prompt to answer.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=40, show_default=True, help="Maximum answer length.")
def check_model(name: str, prompt: str, max_tokens: int) -> None:
    """Load the model NAME (download it first if necessary), generate an answer and print the speed."""
    from seeupo.engines.model_check import generate_answer
    from seeupo.models.catalog import CATALOG, downloaded_folder, fetch

    if name in CATALOG and downloaded_folder(name) is None:
        fetch(name, on_note=note)
    answer = generate_answer(name, prompt, max_tokens=max_tokens)
    echo(f"{name}: {answer.parameters / 1e6:.1f} million parameters, {answer.packing} packing")
    echo_text(f"{prompt}\n{answer.text}")
    echo(f"{answer.tokens} tokens, {answer.tokens_per_second:.1f} tokens/s at batch size 1")
