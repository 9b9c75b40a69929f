"""Scripted players through the whole stack: does an environment run, can it be solved, and how fast is it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool import EnvPool
from seeupo.types import StepResult, StopReason, Task

Player = Literal["expert", "do-nothing"]
IN_FLIGHT = 64
LONGEST_EPISODE = 300
"""Actions after which a player is stopped and the episode scored as it stands."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """One episode: its score, or None with the failure that lost it."""

    task: Task
    score: float | None
    turns: int
    stop: StopReason
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All episodes of one player on the tasks of a split."""

    split: str
    player: Player
    episodes: tuple[Played, ...]
    seconds: float

    @property
    def solved(self) -> int:
        return sum(episode.score == 1.0 for episode in self.episodes)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(episode.failure for episode in self.episodes if episode.failure is not None)

    @property
    def as_it_should_be(self) -> bool:
        """Nothing failed; an expert solves all, and who does nothing solves nothing."""
        return not self.failures and self.solved == (len(self.episodes) if self.player == "expert" else 0)

    def to_json(self) -> dict[str, Any]:
        scores = [episode.score for episode in self.episodes if episode.score is not None]
        return {
            "split": self.split,
            "player": self.player,
            "episodes": len(self.episodes),
            "solved": self.solved,
            "mean_score": sum(scores) / len(scores) if scores else None,
            "mean_turns": sum(episode.turns for episode in self.episodes) / max(1, len(self.episodes)),
            "failures": list(self.failures),
            "seconds": round(self.seconds, 3),
            "episodes_per_second": round(len(self.episodes) / self.seconds, 1) if self.seconds else None,
        }


def check(
    pool: EnvPool, splits: Sequence[str], players: Sequence[Player], *, tasks: int | None = None
) -> Iterator[Outcome]:
    """Let each player play the first `tasks` tasks of each split; a player that nobody has written is left out."""
    for split in splits:
        chosen = pool.tasks(split)[:tasks]
        order = {task.id: number for number, task in enumerate(chosen)}
        for player in players:
            if player == "expert" and chosen and pool.expert(chosen[0]) is None:
                continue
            started = time.perf_counter()
            games = [play(pool, task, player) for task in chosen]
            episodes = tuple(sorted(drive(games), key=lambda played: order[played.task.id]))
            yield Outcome(split=split, player=player, episodes=episodes, seconds=time.perf_counter() - started)


Call = Callable[[], Future[Any]]
Choose = Callable[[StepResult], Future[str]]
"""The next action, later, for what the environment has just answered."""
T = TypeVar("T")
Game = Generator[Call, Any, T]
"""Yields calls, takes their values, and returns what was played."""


def play(pool: EnvPool, task: Task, player: Player) -> Game[Played]:
    """One episode of a scripted player as a game."""
    expert = pool.expert(task) if player == "expert" else None
    return game(pool, task, task.seed, do_nothing if expert is None else expert.submit, max_turns=LONGEST_EPISODE)


def do_nothing(_: StepResult) -> Future[str]:
    said: Future[str] = Future()
    said.set_result("")
    return said


def game(pool: EnvPool, task: Task, seed: int, choose: Choose, *, max_turns: int) -> Game[Played]:
    """One episode, whoever chooses its actions; after `max_turns` it is scored as it stands."""
    episode = pool.start(task, seed)
    turns = 0
    try:
        result: StepResult = yield episode.reset
        while not result.done and turns < max_turns:
            action = yield partial(choose, result)
            result = yield partial(episode.step, action)
            turns += 1
        score: float = yield episode.score
        return Played(task=task, score=score, turns=turns, stop=stop_of(result, score))
    except EnvFailure as failure:
        return Played(task=task, score=None, turns=turns, stop=StopReason.FAILURE, failure=str(failure))
    finally:
        episode.close()


def stop_of(result: StepResult, score: float) -> StopReason:
    """Why an episode that ended with this result has no further turn."""
    if result.terminated:
        return StopReason.GOAL if score == 1.0 else StopReason.ENVIRONMENT
    return StopReason.FORCED if result.truncated else StopReason.TURN_LIMIT


def drive(games: Iterable[Game[T]], *, in_flight: int = IN_FLIGHT) -> Iterator[T]:
    """Many games at once: whenever a call of one has been answered, its next call is made."""
    waiting = iter(games)
    answered: queue.SimpleQueue[tuple[Game[T], Future[Any] | None]] = queue.SimpleQueue()
    running = 0

    def begin() -> int:
        for game in waiting:
            answered.put((game, None))
            return 1
        return 0

    for _ in range(in_flight):
        running += begin()
    while running:
        game, future = answered.get()
        try:
            if future is None:
                call = next(game)
            elif (error := future.exception()) is not None:
                call = game.throw(error)
            else:
                call = game.send(future.result())
        except StopIteration as end:
            running += begin() - 1
            yield end.value
        else:
            call().add_done_callback(lambda done, game=game: answered.put((game, done)))  # type: ignore[misc]
