"""Scripted rollouts: experts, no-op policies and other text policies, many episodes at once."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice, starmap
from typing import Any, Literal, TypeVar, get_args

from seeupo.callbacks import Callback
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.episode import PooledExpert
from seeupo.envs.pool.pool import EnvPool, Mistakes
from seeupo.errors import EnvError
from seeupo.evaluation.results import AttemptResult
from seeupo.types import Attempt, StepResult, StopReason, Task
from seeupo.utils.text import counted

ScriptedPolicy = Literal["expert", "noisy expert", "no-op"]
CONCURRENCY = 64
MAX_TURNS = 300
"""Number of turns after which a scripted episode is stopped and scored in its current state."""
CHECKED_TURNS: Mapping[ScriptedPolicy, int] = {"expert": MAX_TURNS, "noisy expert": 100, "no-op": 20}
"""The same for the policies of a check; an environment may never end for a policy that does nothing."""
CHECKED_TASKS = 100
"""Number of tasks of each split that a check runs, unless another is given."""
TASKS_WITH_WORDS = 20
"""Number of tasks whose texts are compared with the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Episodes of one scripted policy on tasks of a split, which has `tasks` of them."""

    split: str
    policy: ScriptedPolicy
    tasks: int
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
        policy = "no-op policy" if self.policy == "no-op" else self.policy
        total = len(self.episodes)
        count = {"expert": total, "no-op": 0}.get(self.policy, self.solved)  # a noisy expert may solve any number
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
            "tasks": self.tasks,
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
    """Run the experts that there are, and the no-op policy, on tasks of each split.

    One task is tried first: an environment that fails it raises `EnvError`.

    Args:
        tasks: Maximum number of tasks of each split, spread evenly over it; `CHECKED_TASKS` by default.
    """
    callback = callback or Callback()
    first = next((split for split in splits if pool.tasks(split)), splits[0])
    pool.try_task(pool.first_tasks(first, tasks)[0])
    for split in splits:
        sampled = spread(pool.tasks(split), tasks or CHECKED_TASKS)
        attempts = [Attempt(task.id, task.id, task, task.seed) for task in sampled]
        order = {attempt.id: number for number, attempt in enumerate(attempts)}
        for policy in get_args(ScriptedPolicy):
            if policy == "noisy expert" and not pool.has_noisy_expert():
                continue
            if policy != "no-op" and attempts and expert_of(pool, attempts[0], policy) is None:
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
                tasks=len(pool.tasks(split)),
                episodes=tuple(sorted(episodes, key=lambda episode: order[episode.task])),
                seconds=time.perf_counter() - started,
            )


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """Return at most `count` of the tasks, evenly spaced, so that every part of a sorted list is in it."""
    count = min(count, len(tasks))
    return [tasks[number * len(tasks) // count] for number in range(count)]


def vocabulary_problem(pool: EnvPool, words: Collection[str], tasks: Sequence[Task]) -> str | None:
    """Return what an environment's vocabulary lacks of the texts of some experts' episodes; None if it is complete."""
    sampled = spread(tasks, TASKS_WITH_WORDS)
    if not words or not sampled or pool.expert(sampled[0]) is None:
        return None
    used = dict.fromkeys(word for text in expert_texts(pool, sampled) for word in text.split())
    if not (missing := [word for word in used if word not in words]):
        return None
    shown = ", ".join(map(repr, missing[:5])) + (", ..." if missing[5:] else "")
    return f"vocabulary() lacks {counted(len(missing), 'word')} of the expert's episodes: {shown}. Add them"


Call = Callable[[], Future[Any]]
TextPolicy = Callable[[StepResult], Future[str]]
"""Chooses the next action, as text in a future, from the last result."""
T = TypeVar("T")
Rollout = Generator[Call, Any, T]
"""An episode as a coroutine: yields calls, receives their values, and returns its result."""


def scripted_rollout(pool: EnvPool, attempt: Attempt, policy: ScriptedPolicy) -> Rollout[AttemptResult]:
    """Return the rollout of a scripted policy."""
    expert = None if policy == "no-op" else expert_of(pool, attempt, policy)
    turns = CHECKED_TURNS[policy]
    return text_rollout(pool, attempt, no_op if expert is None else expert.submit, max_turns=turns)


def expert_of(pool: EnvPool, attempt: Attempt, policy: ScriptedPolicy) -> PooledExpert | None:
    """Return the expert, or the noisy expert with the mistakes that it makes by default."""
    return pool.expert(attempt.task, mistakes=Mistakes(attempt.seed, {}) if policy == "noisy expert" else None)


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
