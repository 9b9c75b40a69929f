"""Experts, noisy experts and the random policy."""

from collections import Counter
from random import Random

import pytest

from envs.pocket.examples import SETTINGS, factory, random_policy, rollout, task_of
from seeupo.envs.pocket.experts import NO_MISTAKES
from seeupo.envs.pocket.kinds import KINDS
from seeupo.envs.pocket.tasks import solution
from seeupo.errors import EnvError


def rates(**changed):
    return NO_MISTAKES | changed


def label(options):
    return "-".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize("options", SETTINGS, ids=label)
def test_the_expert_solves_every_task_in_the_minimum_number_of_turns(options):
    world = factory(**options, train_tasks=200, test_tasks=100)
    env = world.make()
    for split in world.splits:
        for task in world.tasks(split):
            results, actions = rollout(env, task, world.expert(task))
            assert env.score() == 1.0, task
            assert results[-1].terminated
            assert len(actions) == len(KINDS[task.kind].steps)
            assert all(result.reward == 0 for result in results)


@pytest.mark.parametrize("tools", ["full", "signatures"])
def test_the_expert_solves_tasks_with_every_tool_description(tools):
    world = factory(surface="natural", tools=tools)
    env = world.make()
    for task in world.tasks("test"):
        rollout(env, task, world.expert(task))
        assert env.score() == 1.0


@pytest.mark.parametrize("options", SETTINGS, ids=label)
def test_a_random_policy_solves_less_than_two_in_a_hundred(options):
    world = factory(**options)
    env, generator = world.make(), Random(7)
    solved = 0
    for index in range(600):
        rollout(env, world.tasks("train")[index % 60], random_policy(world.surface, generator))
        solved += env.score() == 1.0
    assert solved < 12


@pytest.mark.parametrize("surface", ["terse", "natural"])
def test_random_actions_are_well_formed_and_reach_every_tool(surface):
    world = factory(surface=surface, deceptive=0.3)
    policy = random_policy(world.surface, Random(0))
    calls = [world.surface.parse(policy(None)) for _ in range(2000)]
    assert {call.tool for call in calls} == set(world.surface.tools)
    assert {len(call.words) for call in calls if call.tool == "done"} == {0, 1}


@pytest.mark.parametrize("options", SETTINGS, ids=label)
def test_a_policy_that_only_writes_done_or_nothing_scores_zero(options):
    world = factory(**options)
    env = world.make()
    done = world.surface.write(type(solution(world.tasks("test")[0])[1][0])("done"))
    for task in world.tasks("test"):
        for policy in (lambda _: done, lambda _: ""):
            rollout(env, task, policy)
            assert env.score() == 0.0


def test_noise_is_reproducible_and_zero_rates_make_no_mistakes():
    world = factory()
    env = world.make()
    for task in world.tasks("train"):
        first, again = (rollout(env, task, world.noisy_expert(task, seed=3, rates={})) for _ in range(2))
        assert first == again
        _, exact = rollout(env, task, world.noisy_expert(task, seed=3, rates=rates()))
        assert exact == [world.surface.write(call) for call in solution(task)[1]]


def test_the_common_wrong_choice_gives_no_error_and_scores_zero():
    world = factory(train_tasks=200)
    env = world.make()
    for task in world.tasks("train"):
        right = [world.surface.write(call) for call in solution(task)[1]]
        results, actions = rollout(env, task, world.noisy_expert(task, seed=0, rates=rates(wrong_choice=1.0)))
        assert env.score() == 0.0
        assert [
            message.content for result in results for message in result.messages if "Error" in message.content
        ] == []
        assert len(actions) == len(right)
        differ = [turn for turn, (mine, best) in enumerate(zip(actions, right, strict=True)) if mine != best]
        assert differ
        assert differ[0] > 0
        if len(right) > 2:
            assert actions[-1] == right[-1] == "done"
            assert differ[0] < len(right) - 1


def test_by_default_some_demonstrations_of_every_kind_are_solved():
    world = factory(train_tasks=200)
    env = world.make()
    solved, attempts = Counter(), Counter()
    for round_ in range(10):
        for number, task in enumerate(world.tasks("train")):
            rollout(env, task, world.noisy_expert(task, seed=1000 * round_ + number, rates={}))
            attempts[task.kind] += 1
            solved[task.kind] += env.score()
    assert set(attempts) == set(KINDS)
    assert all(0.1 < solved[kind] / attempts[kind] < 0.45 for kind in KINDS)


def test_a_skipped_lookup_is_guessed():
    world = factory()
    env = world.make()
    task = task_of(world, "chain")
    _, actions = rollout(env, task, world.noisy_expert(task, seed=0, rates=rates(skipped_lookup=1.0)))
    assert [action.split()[0] for action in actions] == ["pay", "done"]


def test_stopping_early_declines_if_that_is_offered():
    for deceptive, word in ((0.0, "done"), (0.3, "decline")):
        world = factory(deceptive=deceptive)
        env = world.make()
        task = task_of(world, "chain")
        _, actions = rollout(env, task, world.noisy_expert(task, seed=0, rates=rates(stops_early=1.0)))
        assert actions == [word]
        assert env.score() == deceptive


def test_a_wrong_tool_takes_the_same_words():
    world = factory()
    env = world.make()
    task = task_of(world, "settle")
    right = [world.surface.write(call) for call in solution(task)[1]]
    seen = set()
    for seed in range(200):
        _, actions = rollout(env, task, world.noisy_expert(task, seed=seed, rates=rates(wrong_tool=0.5)))
        seen.update(action.split()[0] for action in actions)
        assert right[0] in actions or len(actions) == 8
        assert all(action.split()[1:] in (right[0].split()[1:], right[1].split()[1:], []) for action in actions)
    assert seen == {"inbox", "card", "paid", "pay", "ask", "done"}


def test_the_expert_continues_after_wrong_words():
    world = factory()
    env = world.make()
    task = task_of(world, "bill")
    notes = world.surface.write(solution(task)[1][0])
    scores = Counter()
    for seed in range(200):
        results, actions = rollout(env, task, world.noisy_expert(task, seed=seed, rates=rates(wrong_word=0.3)))
        assert results[-1].terminated or len(actions) == 8
        assert not any("wrong words" in message.content for result in results for message in result.messages)
        scores[env.score()] += 1
        if actions[0] == notes and results[2].messages[0].content == "Error: no such note":
            assert [action.split()[0] for action in actions[1:3]] == ["read", "read"]
            scores["tried again"] += 1
    assert scores[0.0] > 50
    assert scores[1.0] > 20
    assert scores["tried again"] > 10


def test_a_wrong_word_is_another_word():
    world = factory()
    env = world.make()
    for task in world.tasks("train"):
        right = world.surface.write(solution(task)[1][0])
        for seed in range(5):
            _, actions = rollout(env, task, world.noisy_expert(task, seed=seed, rates=rates(wrong_word=1.0)))
            assert actions[0].split()[0] == right.split()[0]
            assert actions[0] != right


@pytest.mark.parametrize("surface", ["terse", "natural"])
def test_episodes_of_the_noisiest_expert_end(surface):
    world = factory(surface=surface)
    env = world.make()
    for seed, task in enumerate(world.tasks("train")):
        everything = rates(wrong_choice=0.5, wrong_word=0.5, skipped_lookup=0.5, wrong_tool=0.5)
        results, _ = rollout(env, task, world.noisy_expert(task, seed=seed, rates=everything))
        assert results[-1].done


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), True, "often"])
def test_rates_are_probabilities(rate):
    world = factory()
    with pytest.raises(EnvError, match=r"wrong_tool is .*; expected a number in \[0, 1\]"):
        world.noisy_expert(world.tasks("train")[0], seed=0, rates={"wrong_tool": rate})


def test_an_unknown_mistake_suggests_the_nearest():
    world = factory()
    with pytest.raises(EnvError, match="no mistake 'wrong_words'; did you mean 'wrong_word'"):
        world.noisy_expert(world.tasks("train")[0], seed=0, rates={"wrong_words": 0.1})
