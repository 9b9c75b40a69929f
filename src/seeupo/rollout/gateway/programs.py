"""Agent programs in this process: functions that solve a task by calling the policy through a client."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import openai

from seeupo.rollout.gateway import AgentProgram
from seeupo.types import Task

CANCEL_SECONDS = 5.0
"""Time that coroutines have to end when they are cancelled."""
OnEnd = Callable[[Any, BaseException | None], None]
"""Called once when a program has ended, with its result or exception."""


@dataclass(frozen=True)
class RunningProgram:
    """A program that has been started; `cancel` ends it at its next await, or abandons its thread."""

    cancel: Callable[[], object]


class InProcessPrograms:
    """Starts one program many times: coroutines in one thread, functions in a thread each."""

    def __init__(self, solve: AgentProgram) -> None:
        self.solve = solve
        self.is_async = inspect.iscoroutinefunction(solve)
        # Making a context for each client costs more than a call. No proxy of the environment takes the calls.
        self._http_settings: Mapping[str, Any] = {"verify": ssl.create_default_context(), "trust_env": False}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent programs", daemon=True)
        self._thread.start()

    def start(self, task: Task, address: str, key: str, on_end: OnEnd) -> RunningProgram:
        """Start the program on a task; its client uses this address and key."""
        if self.is_async:
            future = asyncio.run_coroutine_threadsafe(self._solve(task, address, key), self._loop)
            future.add_done_callback(lambda done: on_end(*_outcome(done.result)))
            return RunningProgram(future.cancel)
        thread = threading.Thread(
            target=lambda: on_end(*_outcome(lambda: self._solve_in_thread(task, address, key))), daemon=True
        )
        thread.start()
        return RunningProgram(lambda: None)

    def close(self) -> None:
        """End all coroutines."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _solve(self, task: Task, address: str, key: str) -> Any:
        http_client = openai.DefaultAsyncHttpxClient(**self._http_settings)
        async with openai.AsyncOpenAI(base_url=address, api_key=key, timeout=None, http_client=http_client) as client:
            result: Awaitable[Any] = self.solve(task, client)
            return await result

    def _solve_in_thread(self, task: Task, address: str, key: str) -> Any:
        http_client = openai.DefaultHttpxClient(**self._http_settings)
        with openai.OpenAI(base_url=address, api_key=key, timeout=None, http_client=http_client) as client:
            return self.solve(task, client)


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=CANCEL_SECONDS) if others else None


def _outcome(result: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return result(), None
    except BaseException as error:
        return None, error


def score_and_rewards(result: object) -> tuple[object, tuple[object, ...]]:
    """Return the score and the rewards of the calls from what a program returned."""
    if isinstance(result, Mapping):
        rewards = result.get("rewards") or ()
        return result.get("score"), tuple(rewards) if isinstance(rewards, list | tuple) else (rewards,)
    return result, ()
