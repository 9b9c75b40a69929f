"""Episodes: termination and scores."""

import os
import subprocess
import sys
from random import Random

import pytest

from envs.pocket.examples import SETTINGS, act, factory, random_policy, rollout, task_of
from seeupo.envs.pocket.apps import TOOLS, Call
from seeupo.envs.pocket.kinds import KINDS
from seeupo.envs.pocket.tasks import solution
from seeupo.envs.pocket.words import words_of
from seeupo.envs.pool.serve import load_factory
from seeupo.errors import EnvError


def expert_actions(world, task):
    return [world.surface.write(call) for call in solution(task)[1]]


@pytest.mark.parametrize("options", SETTINGS)
def test_the_same_actions_give_the_same_results(options):
    world, again = factory(**options), factory.__wrapped__(**options)
    for index, task in enumerate(world.tasks("train")):
        results, actions = rollout(world.make(), task, random_policy(world.surface, Random(index)), seed=1)
        replayed = iter(actions)
        other = again.tasks("train")[index]
        assert rollout(again.make(), other, lambda _, replayed=replayed: next(replayed), seed=2) == (results, actions)


def test_concurrent_episodes_are_independent():
    world = factory()
    one, other = task_of(world, "settle"), task_of(world, "bill")
    first, second = world.make(), world.make()
    first.reset(one, seed=0)
    second.reset(other, seed=0)
    for mine, theirs in zip(expert_actions(world, one), expert_actions(world, other), strict=False):
        first.step(mine)
        second.step(theirs)
    assert first.score() == 1.0
    assert second.score() == 0.0
    second.step("done")
    assert second.score() == 1.0


def test_reset_clears_the_previous_episode():
    world = factory()
    env = world.make()
    task = task_of(world, "settle")
    act(env, task, "pay ann 5", "pay ann 5", "done")
    assert env.score() == 0.0
    act(env, task, *expert_actions(world, task))
    assert env.score() == 1.0


@pytest.mark.parametrize("kind", list(KINDS))
def test_any_side_effect_scores_zero(kind):
    world = factory(max_turns=10)
    env = world.make()
    task = task_of(world, kind)
    *before, last = expert_actions(world, task)
    for extra in ("pay ann 5", "ask ann 5", "mail ann mon", "text ann mon", "cancel tea"):
        assert act(env, task, *before, extra, last).terminated
        assert env.score() == 0.0, extra
    if before[-1].split()[0] not in TOOLS or not TOOLS[before[-1].split()[0]].tells:
        act(env, task, *before, before[-1], last)
        assert env.score() == (1.0 if kind == "shift" else 0.0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_lookups_and_errors_do_not_change_the_score(kind):
    world = factory(max_turns=12)
    env = world.make()
    task = task_of(world, kind)
    act(env, task, "paid ann", "day mon", "nonsense", "", "who boss", *expert_actions(world, task))
    assert env.score() == 1.0


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_answer_must_be_exact(kind):
    world = factory()
    env = world.make()
    task = task_of(world, kind)
    *before, last = expert_actions(world, task)
    for answer in ("", *words_of("word")):
        act(env, task, *before, f"done {answer}".strip())
        assert env.score() == float(f"done {answer}".strip() == last)


def test_the_score_is_zero_before_done():
    world = factory()
    env = world.make()
    assert env.score() == 0.0
    for task in world.tasks("train"):
        *before, last = expert_actions(world, task)
        result = act(env, task, *before)
        assert not result.done
        assert env.score() == 0.0
        env.step(last)
        assert env.score() == 1.0


def test_the_common_wrong_choice_works_without_an_error():
    world = factory()
    env = world.make()
    task = task_of(world, "bill")
    notes, read, *_ = expert_actions(world, task)
    listed = act(env, task, notes).messages[0].content.split()
    old = listed[listed.index("old") + 1]
    topic = read.split()[1]
    *_, amount, _, payee = env.step(f"read {topic} {old}").messages[0].content.split()
    assert env.step(f"pay {payee} {amount}").messages[0].content == "ok"
    result = env.step("done")
    assert result.terminated
    assert result.reward == env.score() == 0.0


@pytest.mark.parametrize("surface", ["terse", "natural"])
def test_declining_is_safe_until_something_wrong_was_done(surface):
    world = factory(surface=surface, deceptive=0.3)
    env = world.make()
    decline = world.surface.write(Call("decline"))
    for task in world.tasks("test"):
        lookup = expert_actions(world, task)[0]
        for actions in ((decline,), (lookup, decline)):
            result = act(env, task, *actions)
            assert result.terminated
            assert env.score() == 0.3
        for spoil in (Call("pay", ("ann", "5")), Call("text", ("ann", "mon")), Call("cancel", ("tea",))):
            act(env, task, world.surface.write(spoil), decline)
            assert env.score() == 0.0
    task = task_of(world, "shift")
    *_, move, _ = expert_actions(world, task)
    act(env, task, move, decline)
    assert env.score() == 0.3
    elsewhere = Call("move", (task.payload["given"]["topic"], "mon"))
    act(env, task, move, world.surface.write(elsewhere), decline)
    assert env.score() == 0.0


def test_decline_is_unknown_in_an_ordinary_world():
    world = factory()
    env = world.make()
    assert act(env, world.tasks("train")[0], "decline").messages[0].content == "Error: unknown tool"
    assert env.score() == 0.0


def test_the_request_mentions_decline_in_a_deceptive_world():
    for surface in ("terse", "natural"):
        for deceptive, mentioned in ((0.0, False), (0.3, True)):
            world = factory(surface=surface, deceptive=deceptive)
            opening = world.make().reset(world.tasks("train")[0], seed=0)
            assert ("decline" in opening.messages[-1].content) is mentioned


def test_the_turn_limit_ends_an_episode_unscored():
    world = factory(turns=(2, 3), max_turns=3)
    env = world.make()
    results, _ = rollout(env, world.tasks("train")[0], lambda _: "who boss")
    assert [result.truncated for result in results] == [False, False, False, True]
    assert not any(result.terminated for result in results)
    assert env.score() == 0.0


def test_the_last_turn_may_still_solve_the_task():
    world = factory(turns=(6, 6), max_turns=6)
    env = world.make()
    results, _ = rollout(env, world.tasks("train")[0], world.expert(world.tasks("train")[0]))
    assert results[-1].terminated
    assert not results[-1].truncated
    assert env.score() == 1.0


def test_there_is_no_step_before_reset_or_after_the_end():
    world = factory(turns=(2, 2), max_turns=2)
    env = world.make()
    with pytest.raises(RuntimeError, match="no episode is running; call reset first"):
        env.step("done")
    task = world.tasks("train")[0]
    for actions in (["done"], ["who boss", "who boss"]):
        assert act(env, task, *actions).done
        with pytest.raises(RuntimeError, match="no episode is running"):
            env.step("done")
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"surface": "spoken"}, "surface='spoken': expected 'terse' or 'natural'"),
        ({"tools": "few"}, "tools='few': expected 'full' or 'signatures'"),
        ({"tools": "signatures"}, "the terse surface describes no tools; use surface='natural'"),
        ({"distractors": "no"}, "distractors='no': expected bool"),
        ({"turns": (1, 6)}, r"turns is \(1, 6\); .* the minimum and maximum number of calls, from 2 to 6"),
        ({"turns": (4, 3)}, r"turns is \(4, 3\)"),
        ({"turns": [2, 7]}, r"turns is \[2, 7\]"),
        ({"turns": 4}, "turns is 4"),
        ({"turns": "26"}, "turns is '26'"),
        ({"turns": (2.0, 6)}, r"turns is \(2\.0, 6\)"),
        ({"train_tasks": 9}, "train_tasks=9: expected at least 10, one for each kind"),
        ({"test_tasks": -1}, "test_tasks=-1: expected at least 0"),
        ({"seed": "0"}, "seed='0': expected int"),
        ({"max_turns": 5}, "max_turns=5: expected at least 6, or the longest tasks have no"),
        ({"deceptive": 1.0}, r"deceptive=1\.0: expected a number in \[0, 1\)"),
        ({"deceptive": float("nan")}, "deceptive=nan"),
        ({"deceptive": True}, "deceptive=True"),
        ({"lookup_reward": -0.1}, "lookup_reward=-0.1: expected a number from 0 to 1"),
        ({"lookup_reward": 1.5}, "lookup_reward=1.5: expected a number from 0 to 1"),
        ({"lookup_reward": True}, "lookup_reward=True: expected float"),
    ],
)
def test_invalid_options_are_errors(options, message):
    with pytest.raises(EnvError, match=message):
        load_factory("seeupo.envs.pocket:PocketFactory", options)


def test_splits():
    world = factory()
    assert world.splits == ("train", "test")
    assert factory(test_tasks=0).tasks("test") == ()


def test_nothing_but_the_standard_library_is_imported():
    program = (
        "import sys; before = set(sys.modules); import seeupo.envs.pocket; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-S", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.split() == ["seeupo"]


def test_lookups_that_the_task_needs_are_rewarded_once_and_apart_from_the_score():
    world = factory(lookup_reward=0.25)
    env = world.make()
    assert world.separate_step_rewards is True
    assert factory().separate_step_rewards is False
    task = task_of(world, "bill")  # notes, read, pay, done
    actions = expert_actions(world, task)
    rewards = [act(env, task, *actions[: n + 1]).reward for n in range(4)]
    assert rewards == [0.25, 0.25, 0.0, 0.0]  # the last step does not repeat the score
    assert env.score() == 1.0
    again = [act(env, task, actions[0], actions[0]).reward, act(env, task, "who boss").reward]
    assert again == [0.0, 0.0]
    assert act(env, task, *actions[:2], "done").reward == env.score() == 0.0


def test_state_keys_name_the_world_and_what_was_looked_up():
    world = factory()
    env = world.make()
    task = task_of(world, "remind")  # event, who, card, send, done
    event, who, _, send, _ = expert_actions(world, task)
    start = env.reset(task, seed=0).state_key
    assert start == env.reset(task, seed=1).state_key
    assert act(env, task, event, who).state_key == act(env, task, who, event).state_key
    assert act(env, task, event, event, "nonsense").state_key == act(env, task, event).state_key
    states = [start, *(act(env, task, *path).state_key for path in ((event,), (event, who), (event, who, send)))]
    assert len(set(states)) == 4
