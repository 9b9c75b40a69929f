"""Scripted rollouts: experts, no-op policies and other text policies, many episodes at once."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice, starmap
from typing import Any, Literal, TypeVar, get_args

from seeupo.callbacks import Callback
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.episode import PooledExpert
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.evaluation.results import AttemptResult
from seeupo.types import Attempt, StepResult, StopReason, Task

ScriptedPolicy = Literal["expert", "no-op"]
CONCURRENCY = 64
MAX_TURNS = 300
"""Number of turns after which a scripted episode is stopped and scored in its current state."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Episodes of one scripted policy on the tasks of a split."""

    split: str
    policy: ScriptedPolicy
    episodes: tuple[AttemptResult, ...]
    seconds: float

    @property
    def solved(self) -> int:
        return sum(episode.score == 1.0 for episode in self.episodes)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(episode.failure for episode in self.episodes if episode.failure is not None)

    @property
    def problem(self) -> str | None:
        """What is wrong, in one line; None if nothing failed, and the expert solved all tasks or the no-op none."""
        policy, count = ("expert", len(self.episodes)) if self.policy == "expert" else ("no-op policy", 0)
        total = len(self.episodes)
        if self.failures:
            return f"split {self.split}: {len(self.failures)} of {total} episodes of the {policy} failed"
        if self.solved == count:
            return None
        expected = "all" if self.policy == "expert" else "none, because it does nothing"
        wrong = next(episode.task for episode in self.episodes if (episode.score == 1.0) != (self.policy == "expert"))
        solved = f"split {self.split}: the {policy} solved {self.solved} of {total} tasks; expected {expected}"
        return f"{solved}. See task {wrong}"

    def to_json(self) -> dict[str, Any]:
        scores = [episode.score for episode in self.episodes if episode.score is not None]
        return {
            "split": self.split,
            "policy": self.policy,
            "episodes": len(self.episodes),
            "solved": self.solved,
            "mean_score": sum(scores) / len(scores) if scores else None,
            "mean_turns": sum(episode.turns for episode in self.episodes) / max(1, len(self.episodes)),
            "failures": list(self.failures),
            "seconds": round(self.seconds, 3),
            "episodes_per_second": round(len(self.episodes) / self.seconds, 1) if self.seconds else None,
        }


def check_environment(
    pool: EnvPool,
    splits: Sequence[str],
    *,
    tasks: int | None = None,
    callback: Callback | None = None,
) -> Iterator[CheckResult]:
    """Run the expert, if there is one, and the no-op policy on the first `tasks` tasks of each split.

    One task is tried first: an environment that fails it raises `EnvError`.
    """
    callback = callback or Callback()
    first = next((split for split in splits if pool.tasks(split)), splits[0])
    pool.try_task(pool.first_tasks(first, tasks)[0])
    for split in splits:
        attempts = [Attempt(task.id, task.id, task, task.seed) for task in pool.tasks(split)[:tasks]]
        order = {attempt.id: number for number, attempt in enumerate(attempts)}
        for policy in get_args(ScriptedPolicy):
            if policy == "expert" and attempts and pool.expert(attempts[0].task) is None:
                continue
            callback.on_phase(f"{split}, {policy}", len(attempts))
            started = time.perf_counter()
            episodes = list[AttemptResult]()
            for episode in run_rollouts(scripted_rollout(pool, attempt, policy) for attempt in attempts):
                episodes.append(episode)
                callback.on_progress(len(episodes))
            yield CheckResult(
                split=split,
                policy=policy,
                episodes=tuple(sorted(episodes, key=lambda episode: order[episode.task])),
                seconds=time.perf_counter() - started,
            )


Call = Callable[[], Future[Any]]
TextPolicy = Callable[[StepResult], Future[str]]
"""Chooses the next action, as text in a future, from the last result."""
T = TypeVar("T")
Rollout = Generator[Call, Any, T]
"""An episode as a coroutine: yields calls, receives their values, and returns its result."""


def scripted_rollout(pool: EnvPool, attempt: Attempt, policy: ScriptedPolicy) -> Rollout[AttemptResult]:
    """Return the rollout of a scripted policy."""
    expert = pool.expert(attempt.task) if policy == "expert" else None
    return text_rollout(pool, attempt, no_op if expert is None else expert.submit, max_turns=MAX_TURNS)


def no_op(_: StepResult) -> Future[str]:
    """Choose the empty action."""
    return finished("")


def finished(text: str) -> Future[str]:
    """Return an action that is known at once."""
    action: Future[str] = Future()
    action.set_result(text)
    return action


def text_rollout(pool: EnvPool, attempt: Attempt, policy: TextPolicy, *, max_turns: int) -> Rollout[AttemptResult]:
    """Return the rollout of a text policy; after `max_turns` the episode is scored in its current state."""
    episode = pool.start(attempt.task, attempt.seed)
    turns = 0
    score: float | None = None
    failure = None
    try:
        result: StepResult = yield episode.reset
        while not result.done and turns < max_turns:
            action = yield partial(policy, result)
            result = yield partial(episode.step, action)
            turns += 1
        score = yield episode.score
        stop = stop_reason(result, score)
    except EnvFailure as error:
        stop = StopReason.FAILURE
        failure = str(error)
    finally:
        episode.close()
    return AttemptResult(
        task=attempt.task.id,
        kind=attempt.task.kind,
        attempt=attempt.index,
        score=score,
        stop=stop.value,
        turns=turns,
        failure=failure,
    )


def recorded_rollout(
    pool: EnvPool, attempt: Attempt, expert: PooledExpert, *, max_turns: int
) -> Rollout[tuple[AttemptResult, list[StepResult], list[str]]]:
    """Return the rollout of an expert, with the results that it saw and its actions."""
    seen: list[StepResult] = []
    actions: list[Future[str]] = []

    def policy(result: StepResult) -> Future[str]:
        seen.append(result)
        actions.append(expert.submit(result))
        return actions[-1]

    outcome = yield from text_rollout(pool, attempt, policy, max_turns=max_turns)
    if outcome.failure is not None:
        return outcome, [], []  # the last action may be missing
    return outcome, seen, [action.result() for action in actions]


def expert_texts(pool: EnvPool, tasks: Sequence[Task]) -> list[str]:
    """Return all texts of the expert's episodes, task by task: what it was told and what it did."""

    def episode(number: int, task: Task) -> Rollout[tuple[int, list[str]]]:
        expert = pool.expert(task)
        if expert is None:
            raise EnvError(f"{pool.name} has no expert for task {task.id}, so there are no texts of its episodes")
        name = f"texts {number}"
        outcome, seen, actions = yield from recorded_rollout(
            pool, Attempt(name, name, task, task.seed), expert, max_turns=MAX_TURNS
        )
        if outcome.failure is not None:
            raise EnvError(f"the expert's episode of task {task.id} of {pool.name} failed: {outcome.failure}")
        return number, [*(message.content for result in seen for message in result.messages), *actions]

    return [text for _, texts in sorted(run_rollouts(starmap(episode, enumerate(tasks)))) for text in texts]


def stop_reason(last: StepResult, score: float | None) -> StopReason:
    """Return why an episode with this last result ended."""
    if last.terminated:
        return StopReason.GOAL if score == 1.0 else StopReason.ENVIRONMENT
    return StopReason.FORCED if last.truncated else StopReason.TURN_LIMIT


def run_rollouts(rollouts: Iterable[Rollout[T]], *, concurrency: int = CONCURRENCY) -> Iterator[T]:
    """Run many rollouts concurrently and yield their results: when a call of one returns, its next call is made."""
    waiting = iter(rollouts)
    answered: queue.SimpleQueue[tuple[Rollout[T], Future[Any] | None]] = queue.SimpleQueue()
    running = 0
    for rollout in islice(waiting, concurrency):
        answered.put((rollout, None))
        running += 1
    while running:
        rollout, future = answered.get()
        try:
            if future is None:
                call = next(rollout)
            elif (error := future.exception()) is not None:
                call = rollout.throw(error)
            else:
                call = rollout.send(future.result())
        except StopIteration as end:
            running -= 1
            for following in islice(waiting, 1):
                answered.put((following, None))
                running += 1
            yield end.value
        else:
            call().add_done_callback(lambda done, rollout=rollout: answered.put((rollout, done)))  # type: ignore[misc]
