"""`seeupo agents`: inspect prompts and responses of a policy, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from seeupo.cli.options import checkpoint_option, env_options, trust_options
from seeupo.cli.terminal import Terminal


@click.group()
def agents() -> None:
    """Inspect the prompts and tokens that a policy sees and produces."""


@agents.command("show")
@click.option("--env", "environment", help="Environment: a name or module:Factory.  [default: the run's]")
@click.option("--model", required=True, help="Run directory, model name or model folder.")
@checkpoint_option
@click.option("--task", "task_id", help="Task id.  [default: the first task of the last split]")
@env_options
@trust_options
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum response length.  [default: 64, or the run's]")
@click.option("--max-turns", type=click.IntRange(min=1), help="Maximum number of turns.  [default: 4, or the run's]")
@click.option("--plain", is_flag=True, default=None, help="Use the plain template, without reasoning.")
def show_agent(
    *,
    environment: str | None,
    model: str,
    task_id: str | None,
    options: dict[str, object],
    trust: tuple[str, ...],
    unsandboxed: bool,
    **overrides: Any,
) -> None:
    """Run one episode and print its tokens: prompt, thought and action, and which are trained on."""
    from seeupo.cli.token_view import print_tokens
    from seeupo.cli.trust import permissions_for
    from seeupo.envs.trust import named_code
    from seeupo.evaluation.evaluate import one_episode, resolve_options, run_settings

    short = {} if run_settings(model) else {"max_tokens": 64, "max_turns": 4}
    overrides = short | {name: value for name, value in overrides.items() if value is not None}
    resolved = resolve_options(policy=model, environment=environment, options=options, **overrides)
    permissions = permissions_for(
        () if resolved.environment is None else named_code(str(resolved.environment), resolved.options),
        in_process=() if resolved.program is None else (resolved.program,),
        trust=trust,
        typed=[environment, options],
        unsandboxed=unsandboxed,
    )
    chat, trajectory = one_episode(replace(resolved, permissions=permissions), task_id)
    print_tokens(trajectory, chat, Terminal())
