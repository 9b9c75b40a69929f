"""`seeupo serve`."""

from __future__ import annotations

import os

import click

from seeupo.cli.options import checkpoint_option
from seeupo.cli.terminal import echo

KEY = "SEEUPO_API_KEY"


@click.command("serve")
@click.argument("policy")
@checkpoint_option
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 is a free one.")
@click.option(
    "--temperature", type=click.FloatRange(min=0),
    help="Temperature of calls that name none; 0 means greedy.  [default: 1.0, or the run's]",
)  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum response length.  [default: 256, or the run's]")
@click.option("--concurrency", type=click.IntRange(min=1), help="Concurrent responses.  [default: 32, or the run's]")
def serve_command(**options: object) -> None:
    """Serve POLICY on this machine, for programs that use the OpenAI or Anthropic client.

    POLICY is a run directory, a model folder or name. The server has chat completions, responses and messages, with
    tools and streaming. If the environment variable SEEUPO_API_KEY is set, clients must send it as their key.
    """
    from seeupo.evaluation.serving import ServeOptions, serve

    def started(address: str) -> None:
        echo(f"serving {options['policy']} at {address}; Ctrl-C stops")
        echo(f"OpenAI client:    OPENAI_BASE_URL={address}")
        echo(f"Anthropic client: ANTHROPIC_BASE_URL={address.removesuffix('/v1')}")

    try:
        serve(ServeOptions(**options, key=os.environ.get(KEY) or None), started)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        echo("stopped")
