"""Generate worlds and tasks from seeds, and split tasks into train and test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random

from seeupo.envs.pocket.apps import Call, Facts, World
from seeupo.envs.pocket.decisions import ALL_KINDS
from seeupo.envs.pocket.kinds import Kind, Memory
from seeupo.envs.pocket.words import CHANNELS, SORT_OF, WORDS, words_of
from seeupo.errors import EnvError
from seeupo.types import Task

TEST_STRIDE = 5
"""One in this many pairs of words is reserved for the test tasks of a kind."""

MAX_DRAWS = 5_000

Accept = Callable[[Kind, Memory, tuple[Call, ...]], bool]
"""Decides whether a split takes a drawn task, from its kind, the words of its solution by slot, and the calls."""


def draw_world(seed: int) -> World:
    """Return a world whose facts are drawn from the seed."""
    return World(dict(_draw_facts(seed)))


@lru_cache(maxsize=1024)  # the episodes of a group share a world
def _draw_facts(seed: int) -> Mapping[Call, Facts]:
    generator = Random(seed)

    def one(words: tuple[str, ...]) -> str:
        # Faster than `choice`.
        return words[int(generator.random() * len(words))]

    def two(words: tuple[str, ...]) -> tuple[str, str]:
        first = second = one(words)
        while second == first:
            second = one(words)
        return first, second

    def either(first: tuple[str, str], second: tuple[str, str]) -> Facts:
        # The position must not reveal which one is correct.
        return (first, second) if generator.random() < 0.5 else (second, first)

    facts: dict[Call, Facts] = {}
    holders = generator.sample(WORDS["name"], len(WORDS["role"]))
    for role, name in zip(WORDS["role"], holders, strict=True):
        facts[Call("who", (role,))] = (("is", name),)
    for name in WORDS["name"]:
        reads, has = two(CHANNELS)
        now, was = two(WORDS["amount"])
        facts[Call("card", (name,))] = either(("reads", reads), ("has", has))
        wants = ("wants", one(WORDS["topic"]))
        facts[Call("inbox", (name,))] = (wants, *either(("now", now), ("was", was)))
    for topic in WORDS["topic"]:
        now, was = two(WORDS["day"])
        new, old = two(WORDS["colour"])
        facts[Call("event", (topic,))] = either(("now", now), ("was", was))
        facts[Call("notes", (topic,))] = either(("new", new), ("old", old))
        for colour, amount, payee in zip((new, old), two(WORDS["amount"]), two(WORDS["name"]), strict=True):
            facts[Call("read", (topic, colour))] = (("sum", amount), ("to", payee))
    return facts


def given_words(task: Task) -> Memory:
    """Return the words that the request of a task names."""
    return dict(task.payload["given"])


def solution(task: Task) -> tuple[Memory, tuple[Call, ...]]:
    """Return the words of a task's solution by slot, and its calls."""
    return ALL_KINDS[task.kind].solve(draw_world(task.seed), given_words(task))


def kept_for_test(kind: Kind, path: Memory) -> bool:
    """Return whether the task's pair of words is reserved for the test tasks of its kind."""
    places = (WORDS[SORT_OF[path[slot]]].index(path[slot]) for slot in kind.pair)
    return (sum(places) + list(ALL_KINDS).index(kind.name)) % TEST_STRIDE == 0


@lru_cache(maxsize=4)  # the runs of a study have the same tasks
def draw_tasks(kinds: tuple[str, ...], train: int, test: int, *, seed: int) -> tuple[tuple[Task, ...], ...]:
    """Return training and test tasks, cycling through the kinds with these names.

    A larger number of training tasks extends the same sequence. The pairs of words of test tasks do not occur in
    training, but each word and tool sequence does.
    """
    training = _draw_split("train", kinds, train, seed, lambda kind, path, _: not kept_for_test(kind, path))
    words: set[str] = set()
    sequences: set[tuple[str, ...]] = set()
    for task in training:
        path, calls = solution(task)
        words.update(path.values())
        sequences.add(tuple(call.tool for call in calls))

    def accept(kind: Kind, path: Memory, calls: tuple[Call, ...]) -> bool:
        known = words.issuperset(path.values()) and tuple(call.tool for call in calls) in sequences
        return known and kept_for_test(kind, path)

    return training, _draw_split("test", kinds, test, seed, accept)


def _draw_split(split: str, kinds: Sequence[str], number: int, seed: int, accept: Accept) -> tuple[Task, ...]:
    generator = Random(f"pocket {split} {seed}")
    cycle = (ALL_KINDS[kinds[index % len(kinds)]] for index in range(number))
    return tuple(_draw_task(split, index, kind, generator, accept) for index, kind in enumerate(cycle))


def _draw_task(split: str, index: int, kind: Kind, generator: Random, accept: Accept) -> Task:
    for _ in range(MAX_DRAWS):
        seed = generator.getrandbits(32)
        given = {slot: generator.choice(words_of(sort)) for slot, sort in kind.given.items()}
        world = draw_world(seed)
        goal = world.copy()
        path, calls = kind.solve(goal, given)
        nothing_to_do = goal.end == Call("done") and not goal.acts and goal.facts == world.facts
        if not nothing_to_do and accept(kind, path, calls):
            return Task(f"{split}-{index:04d}-{kind.name}", split, kind.name, seed, {"given": given})
    raise EnvError(
        f"found no {split} task of kind {kind.name} in {MAX_DRAWS} draws: too few training tasks cover "
        "its words and tools; increase train_tasks"
    )
