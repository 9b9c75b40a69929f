"""Gateway: a server in front of a sampler, for programs that call a model through an API."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from seeupo.envs.declare import Role
from seeupo.envs.references import resolve
from seeupo.envs.trust import check_trust
from seeupo.errors import TrainingError
from seeupo.protocols import Rollouts
from seeupo.types import Task

if TYPE_CHECKING:
    from seeupo.rollout.runner import Runner

PACKAGES = ("anthropic", "openai", "starlette", "uvicorn")
"""Packages of the extra `agents`."""
AgentProgram = Callable[[Task, Any], Any]
"""`solve(task, client)`, a function or coroutine function.

The client is an `openai.OpenAI`, or an `openai.AsyncOpenAI` for a coroutine function, that calls the policy. The
function returns the score, or a mapping with the `score` and the `rewards` of its calls.
"""


def missing_packages() -> list[str]:
    """Return the packages of the extra `agents` that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def load_program(name: str | None, trust: Collection[str]) -> AgentProgram | None:
    """Import the agent program that `agent.program` names; None if it names none.

    Raises:
        TrustError: The function is not trusted.
        EnvError: It does not exist, or is not marked with `seeupo.agent_program`.
    """
    if name is None:
        return None
    check_trust([name], trust)
    if missing := missing_packages():
        raise TrainingError(f"agent.program needs {' and '.join(missing)}: pip install 'seeupo[agents]'")
    program: AgentProgram = resolve(name, Role.PROGRAM)
    return program


@contextmanager
def open_rollouts(runner: Runner, program: AgentProgram | None) -> Iterator[Rollouts]:
    """Provide what runs the attempts: the runner, or the gateway of an agent program with the runner's settings."""
    if program is None:
        yield runner
        return
    from seeupo.models.lora.turn_adapters import turn_adapters
    from seeupo.rollout.gateway.gateway import Gateway

    adapters = turn_adapters(runner.policy.model)
    gateway = Gateway(
        runner.policy,
        program,
        runner.sampler,
        parameters=runner.parameters,
        agent_roles=() if adapters is None else adapters.roles,
        max_turns=runner.max_turns,
        concurrency=runner.concurrency,
        episode_seconds=runner.episode_seconds,
        deterministic=runner.deterministic,
    )
    with closing(gateway):
        yield gateway
