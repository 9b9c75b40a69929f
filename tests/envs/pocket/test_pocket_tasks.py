"""Tasks: generation from a seed, and the train-test split."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.pocket.examples import factory
from seeupo.envs.pocket import tasks
from seeupo.envs.pocket.apps import TOOLS
from seeupo.envs.pocket.kinds import KINDS, WRONG_LABEL
from seeupo.envs.pocket.tasks import draw_tasks, draw_world, given_words, kept_for_test, solution
from seeupo.envs.pocket.words import WORDS
from seeupo.errors import EnvError
from seeupo.types import Task


def test_kinds_take_two_to_six_calls_each_with_its_own_tools():
    assert {len(kind.steps) for kind in KINDS.values()} == {2, 3, 4, 5, 6}
    assert len({tuple(step.tool for step in kind.steps) for kind in KINDS.values()}) == len(KINDS) == 10
    for kind in KINDS.values():
        assert kind.steps[-1].tool == "done"
        assert any(step.learns.get(kind.choice) in WRONG_LABEL for step in kind.steps)


def test_later_calls_depend_on_earlier_results():
    for kind in KINDS.values():
        learned = {slot for step in kind.steps for slot in step.learns}
        act = kind.steps[-1] if len(kind.steps) == 2 else kind.steps[-2]
        assert learned & {*act.slots, act.tool}
        # Every lookup is used.
        assert learned <= {slot for step in kind.steps for slot in (*step.slots, step.tool)}


@pytest.mark.parametrize("turns", [(2, 2), (2, 3), (4, 5), (6, 6), (2, 6)])
def test_turns_select_kinds_by_their_calls(turns):
    world = factory(turns=turns)
    expected = {name for name, kind in KINDS.items() if turns[0] <= len(kind.steps) <= turns[1]}
    for split in world.splits:
        tasks = world.tasks(split)
        assert {task.kind for task in tasks} == expected
        assert all(turns[0] <= len(solution(task)[1]) <= turns[1] for task in tasks)


def check_split(world):
    """Check that no pair of test words occurs in training with its tools, and that each word and tool does."""
    found = {}
    for split in world.splits:
        paths = [(KINDS[task.kind], *solution(task)) for task in world.tasks(split)]
        sequences = [tuple(call.tool for call in calls) for _, _, calls in paths]
        found[split] = {
            "pairs": {(kind.name, *(path[slot] for slot in kind.pair)) for kind, path, _ in paths},
            "wholes": {(s, *sorted(path.items())) for (_, path, _), s in zip(paths, sequences, strict=True)},
            "words": {word for _, path, _ in paths for word in path.values()},
            "requests": {word for task in world.tasks(split) for word in given_words(task).values()},
            "sequences": set(sequences),
        }
    train, test = found["train"], found["test"]
    assert not train["pairs"] & test["pairs"]
    assert not train["wholes"] & test["wholes"]
    assert test["words"] <= train["words"]
    assert test["requests"] <= train["words"]
    assert test["sequences"] <= train["sequences"]
    return found


def test_test_tasks_are_new_combinations_of_known_words_and_tools():
    found = check_split(factory(train_tasks=512, test_tasks=128))
    everything = {word for words in WORDS.values() for word in words} | {"mail", "text"}
    assert found["train"]["words"] == everything
    assert found["train"]["requests"] == {*WORDS["name"], *WORDS["role"], *WORDS["topic"]}
    assert len(found["test"]["sequences"]) == 13  # three of the ten kinds go by mail or by text


@settings(max_examples=25)
@given(st.integers(0, 10**9), st.integers(2, 6), st.integers(0, 4), st.integers(30, 80))
def test_the_split_holds_for_any_seed_and_size(seed, fewest, more, train):
    check_split(factory(seed=seed, turns=(fewest, min(fewest + more, 6)), train_tasks=train, test_tasks=20))


def test_too_few_training_tasks_are_an_error(monkeypatch):
    monkeypatch.setattr(tasks, "MAX_DRAWS", 500)
    kept = 0
    for seed in range(6):
        try:
            check_split(factory(seed=seed, turns=(6, 6), train_tasks=6, test_tasks=4))
        except EnvError:
            continue
        kept += 1
    assert 0 < kept < 6
    with pytest.raises(EnvError, match=r"found no test task of kind .* increase train_tasks"):
        factory(turns=(6, 6), train_tasks=2, test_tasks=40).tasks("test")


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_number_of_tasks_is_known_before_they_are_drawn(split):
    world = factory(train_tasks=128, test_tasks=8)
    assert world.task_counts[split] == len(world.tasks(split))


def test_each_kind_has_pairs_in_both_splits():
    for kind in KINDS.values():
        sides = {
            kept_for_test(kind, solution(Task("t", "", kind.name, seed, {"given": words}))[0])
            for seed in range(30)
            for words in [{slot: WORDS[sort][seed % 5 + (slot == "event")] for slot, sort in kind.given.items()}]
        }
        assert sides == {True, False}


def test_tasks_are_stable_and_numbered():
    one, other = factory(), factory(surface="natural", deceptive=0.3)
    kinds = tuple(dict.fromkeys(task.kind for task in one.tasks("train")))
    drawn_again = draw_tasks.__wrapped__(kinds, 60, 40, seed=0)  # without the cache
    for split, again in zip(one.splits, drawn_again, strict=True):
        assert one.tasks(split) == other.tasks(split) == again
        assert [task.id for task in one.tasks(split)][:3] == [
            f"{split}-0000-when",
            f"{split}-0001-owed",
            f"{split}-0002-settle",
        ]
        assert len({task.id for task in one.tasks(split)}) == len(one.tasks(split))
        assert all(task.split == split for task in one.tasks(split))
    more = factory(train_tasks=90, test_tasks=50)
    assert more.tasks("train")[:60] == one.tasks("train")
    assert factory(seed=1).tasks("train") != one.tasks("train")


def test_the_payload_contains_only_the_request():
    for task in factory().tasks("test"):
        assert json.loads(json.dumps(task.payload)) == {"given": given_words(task)}
        assert set(given_words(task)) == set(KINDS[task.kind].given)


def test_no_task_is_solved_by_doing_nothing():
    for task in factory(train_tasks=512).tasks("train"):
        world = draw_world(task.seed)
        goal = world.copy()
        KINDS[task.kind].solve(goal, given_words(task))
        assert goal.end.words or goal.acts or goal.facts != world.facts


def test_tools_of_each_solution_are_known():
    for task in factory().tasks("train"):
        for call in solution(task)[1]:
            assert TOOLS[call.tool].fits(call.words)
