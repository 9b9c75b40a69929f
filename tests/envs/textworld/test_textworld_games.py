"""Real games in workers. They need the environment's own interpreter."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeupo
from envs.textworld import hostile
from envs.worlds import HAS_SANDBOX, worker_pids
from seeupo.envs.install import interpreter
from seeupo.envs.pool.pool import EnvPool, Mistakes
from seeupo.envs.textworld.commands import SHORT_FORMS, VERBS
from seeupo.envs.textworld.games import LEVELS
from seeupo.types import Task

BUILD = """
import sys, textworld
from seeupo.envs.textworld.games import Recipe, game_file, winning_commands
game = game_file(Recipe(sys.argv[1], int(sys.argv[2])))
verbs = textworld.Game.load(str(game.with_suffix(".json"))).verbs
print(game, *verbs, "", *winning_commands(game), sep="\\n")
"""


@pytest.fixture(scope="module")
def pool(textworld):
    with EnvPool(textworld, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        yield pool


@pytest.fixture(scope="module")
def small(textworld):
    """One game of each level that the installation has not built."""
    options = {"level": "all", "train": 1, "test": 0, "show_commands": True}
    with EnvPool(textworld, options=options, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        yield pool


def rollout(pool, task, policy, most=12):
    env = pool.env()
    results = [env.reset(task, seed=0)]
    while not results[-1].done and len(results) <= most:
        results.append(env.step(policy(results[-1])))
    score = env.score()
    env.close()
    return results, score


def builder(textworld, cache, hash_seed, level, seed):
    program = [str(interpreter(textworld)), "-c", BUILD, level, str(seed)]
    source = str(Path(seeupo.__file__).parents[1])
    environment = os.environ | {"SEEUPO_CACHE": str(cache), "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source}
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True, cwd=cache)


def test_the_expert_wins_and_a_no_op_policy_does_not(pool):
    tasks = [*pool.tasks("train")[:10], *pool.tasks("test")[:10]]
    for task in tasks:
        results, score = rollout(pool, task, pool.expert(task))
        assert score == 1.0
        assert results[-1].terminated
        assert [result.reward for result in results] == [0.0] * 4 + [1.0]
        results, score = rollout(pool, task, lambda _: "look", most=5)
        assert score == 0.0
        assert not any(result.reward for result in results)


def actions_of(pool, task, seed, rate):
    """Return the actions of a noisy expert in an episode of at most 12 turns, and the score."""
    actions = []
    expert = pool.expert(task, mistakes=Mistakes(seed, {"wrong_command": rate}))

    def recorded(result):
        actions.append(expert(result))
        return actions[-1]

    return actions, rollout(pool, task, recorded)[1]


def test_a_noisy_expert_strays_from_the_walkthrough_and_finds_its_way_back(pool):
    tasks = pool.tasks("train")[:12]
    walkthroughs = [actions_of(pool, task, 0, 0.0) for task in tasks]
    assert [(len(actions), score) for actions, score in walkthroughs] == [(4, 1.0)] * len(tasks)

    noisy = [actions_of(pool, task, 0, 0.3) for task in tasks]
    assert noisy == [actions_of(pool, task, 0, 0.3) for task in tasks]
    assert noisy != [actions_of(pool, task, 1, 0.3) for task in tasks]
    # Most episodes have a wrong command, and still win: the remaining commands start where it led.
    strayed = [score for (actions, score), (plain, _) in zip(noisy, walkthroughs, strict=True) if actions != plain]
    assert len(strayed) >= 6
    assert sum(strayed) >= len(strayed) / 2

    never_right = [actions_of(pool, task, 0, 1.0) for task in tasks]
    assert all(actions[0] != plain[0] for (actions, _), (plain, _) in zip(never_right, walkthroughs, strict=True))


def test_the_basic_theme_has_short_texts_and_the_expert_wins(textworld, pool):
    with EnvPool(textworld, options={"theme": "basic"}, workers=1, unsandboxed=not HAS_SANDBOX) as basic:
        played = [rollout(basic, task, basic.expert(task)) for task in basic.tasks("train")[:8]]
    assert [(len(results) - 1, score) for results, score in played] == [(4, 1.0)] * 8
    prose = [rollout(pool, task, pool.expert(task)) for task in pool.tasks("train")[:8]]
    assert observed_characters(played) < 0.75 * observed_characters(prose)


def observed_characters(episodes):
    messages = [message for results, _ in episodes for result in results for message in result.messages]
    return sum(len(message.content) for message in messages if message.role == "user")


@pytest.mark.parametrize(("number", "commands"), [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_each_level_takes_as_many_commands_as_it_says(small, number, commands):
    task = small.tasks("train")[number]
    results, score = rollout(small, task, small.expert(task))
    assert score == 1.0
    assert len(results) - 1 == commands


def test_show_commands_lists_possible_commands(small):
    task = small.tasks("train")[2]
    expert = small.expert(task)
    env = small.env()
    result = env.reset(task, seed=0)
    while not result.done:
        action = expert(result)
        assert action in result.messages[-1].content.partition("Possible commands: ")[2].split(", ")
        result = env.step(action)
    assert "Possible commands" not in result.messages[-1].content
    env.close()


def test_the_documentation_page_is_correct(pool):
    page = (Path(__file__).parents[3] / "docs/environments/textworld.md").read_text()
    task = pool.tasks("test")[0]
    expert, actions = pool.expert(task), []

    def act(result):
        actions.append(f"assistant: {expert(result)}")
        return actions[-1].removeprefix("assistant: ")

    results, score = rollout(pool, task, act)
    texts = ["\n".join(f"{message.role}: {message.content}" for message in result.messages) for result in results]
    lines = [line for pair in zip(texts, [*actions, f"score: {score}"], strict=True) for line in pair]
    assert task.id == "test-medium-0000"
    (shown,) = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    assert all(part in "\n".join(lines) for part in shown.split("\n...\n"))


def test_an_episode_is_the_same_every_time(pool):
    task = pool.tasks("test")[3]
    first, _ = rollout(pool, task, pool.expert(task))
    second, _ = rollout(pool, task, pool.expert(task))
    assert first == second


def test_episodes_in_one_worker_do_not_disturb_one_another(pool):
    task = pool.tasks("test")[4]
    alone, _ = rollout(pool, task, pool.expert(task))
    one, other, expert = pool.env(), pool.env(), pool.expert(task)
    results = [one.reset(task, seed=0)]
    other.reset(task, seed=1)
    while not results[-1].done:
        results.append(one.step(expert(results[-1])))
        other.step("examine me")
        other.step("save")
    assert results == alone
    assert (one.score(), other.score()) == (1.0, 0.0)
    one.close()
    other.close()


def test_hostile_replies_never_reach_the_game(pool):
    task = pool.tasks("test")[0]
    before = worker_pids(pool)
    env, expert = pool.env(), pool.expert(task)
    result = env.reset(task, seed=0)
    for reply in hostile.REFUSED:
        answer = env.step(reply)
        assert answer.messages[0].content.startswith("Error: "), reply[:40]
        assert not answer.done
    assert env.score() == 0.0
    # Nothing has changed: the expert still wins.
    while not result.done:
        result = env.step(expert(result))
    assert env.score() == 1.0
    env.close()
    assert worker_pids(pool) == before


def test_unusual_commands_do_not_break_the_game(pool):
    before = worker_pids(pool)
    env = pool.env()
    env.reset(pool.tasks("test")[1], seed=0)
    for command in hostile.STRANGE:
        result = env.step(command)
        assert result.messages[0].content
        assert not result.messages[0].content.startswith("Error: ")
    env.close()
    assert worker_pids(pool) == before


NOUNS = [
    "box",
    "key",
    "chest",
    "all",
    "it",
    "me",
    "floor",
    "with",
    "from",
    "in",
    "on",
    "and",
    "except",
    "the",
    "a",
    "1",
]
PHRASES = st.builds(
    "{} {}".format,
    st.sampled_from([*VERBS, *SHORT_FORMS]),
    st.lists(
        st.sampled_from([*NOUNS, *VERBS]) | st.from_regex(r"[A-Za-z0-9'-]{1,12}", fullmatch=True), max_size=25
    ).map(" ".join),
)


@given(commands=st.lists(PHRASES | st.text(), min_size=1, max_size=8))
def test_fuzzing_never_breaks_the_worker(pool, commands):
    before = worker_pids(pool)
    env = pool.env()
    result = env.reset(pool.tasks("train")[0], seed=0)
    for command in commands:
        if not result.done:
            result = env.step(command)
            assert len(result.messages[0].content) < 21_000
    assert env.score() in (0.0, 1.0)
    env.close()
    assert worker_pids(pool) == before


@pytest.mark.parametrize(("level", "seed"), [("long", 33), ("medium", 90)], ids=["shorter way", "ambiguous command"])
def test_games_whose_walkthrough_does_not_win_are_skipped(small, level, seed):
    """TextWorld's first game for these seeds can be won sooner, or is not won by its own walkthrough."""
    task = Task("new", "train", kind=level, seed=seed)
    results, score = rollout(small, task, small.expert(task))
    assert score == 1.0
    assert len(results) - 1 == LEVELS[level].commands


def test_concurrent_builds_of_one_game_agree_for_any_hash_seed(textworld, tmp_path):
    builders = [builder(textworld, tmp_path, seed, "short", 77) for seed in ("1", "2")]
    outputs = [process.communicate(timeout=600)[0] for process in builders]
    assert [process.returncode for process in builders] == [0, 0]
    assert outputs[0] == outputs[1]
    first, *verbs = outputs[0].partition("\n\n")[0].splitlines()
    assert {*verbs, "goal"} == set(VERBS)
    game = Path(first)
    assert sorted(path.name for path in game.parent.iterdir()) == ["short-77-goal.json", "short-77-goal.z8"]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output, _ = builder(textworld, elsewhere, "3", "short", 77).communicate(timeout=600)
    assert output.splitlines()[1:] == outputs[0].splitlines()[1:]
    assert Path(output.splitlines()[0]).read_bytes() == game.read_bytes()
