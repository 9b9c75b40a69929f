"""Play an episode by hand, seeing what a policy would see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from seeupo.protocols import Env
from seeupo.types import StepResult, Task, Tool
from seeupo.utils.text import one_line


def play(
    env: Env, task: Task, *, seed: int, show: Callable[[str], None], ask: Callable[[], str | None]
) -> tuple[float, int]:
    """Run an episode until it ends or `ask` returns None; return the score and the number of actions."""
    result = env.reset(task, seed=seed)
    present(result, show)
    turns = 0
    while not result.done and (action := ask()) is not None:
        result = env.step(action)
        turns += 1
        present(result, show)
    return env.score(), turns


def present(result: StepResult, show: Callable[[str], None]) -> None:
    """Show everything that a step returns, as plain text."""
    if result.tools:
        show(f"[tools offered: {len(result.tools)}]")
        for tool in result.tools:
            show(one_line(f"  {signature(tool)}  {tool.description.partition('. ')[0]}"))
    for message in result.messages:
        show(f"[{message.role}] {message.content}")
        for call in message.tool_calls:
            show(one_line(f"  calls {call.name}({dict(call.arguments)})"))
    if result.reward:
        show(f"[reward of this step: {result.reward:g}]")
    if result.done:
        show("[the episode has ended]" if result.terminated else "[a limit ended the episode]")


def signature(tool: Tool) -> str:
    """Return a tool as name(parameter, optional?). Environments may give any parameters, not only a JSON schema."""
    required, properties = tool.parameters.get("required"), tool.parameters.get("properties")
    needed = required if isinstance(required, list | tuple) else ()
    names = properties if isinstance(properties, Mapping) else {}
    return f"{tool.name}({', '.join(name if name in needed else f'{name}?' for name in names)})"
