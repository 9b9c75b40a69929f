"""The adapter on small environments, in this process and in a worker."""

import inspect
import json
import math
import random
import re
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.gymnasium_text.text_worlds import Coin, Fixed, Scripted, always_heads
from seeupo.envs.failures import EnvFailure
from seeupo.envs.gymnasium_text import GymnasiumTextFactory
from seeupo.envs.options import check_options
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.utils.text import LONGEST_OBSERVATION


def rollout(factory, task, actions):
    env = factory.make()
    results = [env.reset(task, seed=0)]
    results += [env.step(action) for action in actions]
    score = env.score()
    env.close()
    return results, score


def answering(**answers):
    return GymnasiumTextFactory(make=Fixed, arguments=answers)


def test_an_episode_is_adapted():
    factory = GymnasiumTextFactory(make="envs.gymnasium_text.text_worlds:Coin", arguments={"tosses": 2})
    task = factory.tasks("train")[0]
    results, score = rollout(factory, task, ["heads", "tails"])
    assert [result.messages[0].role for result in results] == ["user"] * 3
    assert results[0].messages[0].content == "2 tosses"
    assert "and you said heads" in results[1].messages[0].content
    assert [result.terminated for result in results] == [False, False, True]
    assert score == min(1.0, results[1].reward + results[2].reward)
    assert results[2].info == {"left": 0}
    assert results[0].info == {"seed": task.seed}


def test_tasks_are_seeds_and_splits_share_none():
    factory = GymnasiumTextFactory(make=Coin, train=7, test=3)
    seeds = {split: [task.seed for task in factory.tasks(split)] for split in factory.splits}
    assert seeds == {"train": list(range(7)), "test": [1_000_000, 1_000_001, 1_000_002]}


def test_interleaved_episodes_have_independent_randomness():
    factory = GymnasiumTextFactory(make=Coin)
    first, second = factory.tasks("train")[:2]
    alone = [rollout(factory, task, ["heads"] * 4)[0] for task in (first, second)]
    envs = factory.make(), factory.make()
    together = [[env.reset(task, seed=9)] for env, task in zip(envs, (first, second), strict=True)]
    for _ in range(4):
        for env, results in zip(envs, together, strict=True):
            results.append(env.step("heads"))
            random.seed(0)
            numpy.random.seed(0)  # noqa: NPY002
    assert together == alone


def test_the_trainers_random_state_is_unchanged():
    factory = GymnasiumTextFactory(make=Coin)
    random.seed(5)
    expected = [random.random() for _ in range(2)]
    random.seed(5)
    found = [random.random()]
    rollout(factory, factory.tasks("train")[3], ["heads"] * 4)
    assert [*found, random.random()] == expected


def test_numpys_global_generator_is_separate_for_each_episode():
    class Noisy(Fixed):
        def step(self, action):
            return str(numpy.random.random()), 0.0, False, False, {}  # noqa: NPY002

    factory = GymnasiumTextFactory(make=Noisy)
    task = factory.tasks("test")[0]
    first, _ = rollout(factory, task, ["a", "b"])
    numpy.random.seed(1)  # noqa: NPY002
    second, _ = rollout(factory, task, ["a", "b"])
    assert first == second


@pytest.mark.parametrize(
    ("options", "rewards", "score"),
    [
        ({}, [], 0.0),
        ({}, [0.25, 0.5], 0.75),
        ({}, [1.0, 1.0], 1.0),
        ({}, [-0.1], 0.0),
        ({"rewards": "last"}, [0.25, 0.5], 0.5),
        ({"rewards": "last"}, [], 0.0),
        ({"worst": -1.0, "best": 1.0}, [], 0.5),
        ({"worst": -10, "best": 10}, [5.0], 0.75),
        ({"success": 1.0}, [0.5, 0.49], 0.0),
        ({"success": 1.0}, [0.5, 0.5], 1.0),
        ({"success": 2.0, "rewards": "last"}, [2.0, 1.0], 0.0),
    ],
)
def test_score_of_rewards(options, rewards, score):
    assert GymnasiumTextFactory(make=Coin, **options).score_of(rewards) == score


def test_no_reward_is_in_the_score_and_in_the_steps():
    factory = GymnasiumTextFactory(make=Scripted, rewards="terminal")
    assert factory.separate_step_rewards
    assert not any(GymnasiumTextFactory(make=Scripted, rewards=mode).separate_step_rewards for mode in ("sum", "last"))
    results, score = rollout(factory, factory.tasks("train")[0], ["a"] * 3)
    assert [result.reward for result in results[1:]] == [0.25, 0.125, 0.0]
    assert score == 0.5
    assert sum(result.reward for result in results) + score == 0.25 + 0.125 + 0.5


def test_an_episode_that_was_stopped_from_outside_has_no_terminal_reward():
    factory = GymnasiumTextFactory(make=Scripted, rewards="terminal")
    results, score = rollout(factory, factory.tasks("train")[0], ["a"] * 2)
    assert [result.reward for result in results[1:]] == [0.25, 0.125]
    assert score == 0.0


@given(st.lists(st.floats(-1e6, 1e6)), st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.sampled_from(["sum", "last"]))
def test_scores_are_between_0_and_1(rewards, worst, width, mode):
    factory = GymnasiumTextFactory(make=Coin, worst=worst, best=worst + width, rewards=mode)
    assert 0.0 <= factory.score_of(rewards) <= 1.0


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"reset": "text"}, "reset returned str; expected"),
        ({"reset": ({"image": 1}, {})}, "observation is dict; expected str"),
        ({"step": ("text", 0.0, False, {})}, "step returned a tuple of 4; expected"),
        ({"step": (b"text", 0.0, False, False, {})}, "observation is bytes; expected str"),
        ({"step": ("text", "much", False, False, {})}, "could not convert string to float: 'much'"),
        ({"step": ("text", None, False, False, {})}, "not 'NoneType'"),
    ],
)
def test_violations_of_gymnasiums_interface_are_errors(answers, problem):
    factory = answering(**answers)
    with pytest.raises((TypeError, ValueError), match=problem):
        rollout(factory, factory.tasks("train")[0], ["act"])


def test_an_exception_of_the_environment_is_a_failure():
    class Broken(Fixed):
        def step(self, action):
            return 1 / 0

    with EnvPool(GymnasiumTextFactory(make=Broken)) as pool:
        env = pool.env()
        env.reset(pool.tasks("train")[0], seed=0)
        with pytest.raises(EnvFailure, match="ZeroDivisionError"):
            env.step("act")


def test_long_observations_are_cut():
    factory = answering(reset=("a" * 1_000_000, {}))
    results, _ = rollout(factory, factory.tasks("train")[0], [])
    text = results[0].messages[0].content
    assert text.endswith(f"a[... {1_000_000 - LONGEST_OBSERVATION} characters cut]")
    assert len(text) < LONGEST_OBSERVATION + 50


def test_truncation_is_distinguished_from_termination():
    factory = answering(step=("text", 0.0, False, True, {}))
    results, _ = rollout(factory, factory.tasks("train")[0], ["act"])
    assert (results[1].terminated, results[1].truncated) == (False, True)
    factory = answering(step=("text", 0.0, True, True, {}))
    results, _ = rollout(factory, factory.tasks("train")[0], ["act"])
    assert (results[1].terminated, results[1].truncated) == (True, False)


def test_info_keeps_json_values_only():
    loop = {}
    loop["loop"] = loop
    factory = answering(reset=("text", {"a": [1, "b"], 2: "x", "loop": loop, "set": {1}, "nan": math.nan}))
    results, _ = rollout(factory, factory.tasks("train")[0], [])
    assert results[0].info == {"a": [1, "b"]}
    json.dumps(results[0].info)


def test_no_step_before_a_reset_or_after_the_end():
    factory = answering(step=("text", 1.0, True, False, {}))
    env = factory.make()
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("act")
    env.reset(factory.tasks("train")[0], seed=0)
    env.step("act")
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("act")
    assert env.score() == 1.0


def test_the_wrapped_environment_is_closed():
    made = []
    factory = GymnasiumTextFactory(make=lambda: made.append(Coin()) or made[-1])
    rollout(factory, factory.tasks("train")[0], [])
    assert [coin.closed for coin in made] == [True]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"make": "no_such_module:Env"}, "there is no module 'no_such_module'"),
        ({"make": "envs.gymnasium_text.text_worlds:Cion"}, "has no Cion"),
        ({"make": "envs.gymnasium_text.text_worlds"}, "expected 'module:name'"),
        (
            {"make": "envs.gymnasium_text.text_worlds:NOT_CALLABLE"},
            "expected a class with reset, step or a func",
        ),
        (
            {"make": Coin, "expert": "envs.gymnasium_text.text_worlds:NOT_CALLABLE"},
            "marked with @seeupo.exp",
        ),
        ({"make": "subprocess:getoutput"}, "'subprocess:getoutput' is not usable as environment"),
        ({"make": "subprocess:Popen"}, "'subprocess:Popen' is not usable as environment"),
        ({"make": 3}, "make=3: expected a class with reset, step or a function marked"),
        ({"make": Coin, "worst": 1.0}, "worst=1.0, best=1.0"),
        ({"make": Coin, "best": math.nan}, "best=nan"),
        ({"make": Coin, "success": math.inf}, "success=inf"),
        ({"make": Coin, "arguments": [1]}, "arguments="),
        ({"make": Coin, "train": -1}, "train=-1"),
    ],
)
def test_wrong_options_are_errors(options, problem):
    with pytest.raises(EnvError, match=problem):
        GymnasiumTextFactory(**options)


def test_the_registry_can_check_the_options():
    check_options(GymnasiumTextFactory, {"make": "a:b", "arguments": {"c": 1}, "success": 1, "rewards": "last"})
    with pytest.raises(EnvError, match="rewards='mean': expected 'sum' or 'last' or 'terminal'"):
        check_options(GymnasiumTextFactory, {"make": "a:b", "rewards": "mean"})


def test_experts_are_given_by_name_or_as_callables():
    factory = GymnasiumTextFactory(make=Coin, expert="envs.gymnasium_text.text_worlds:always_heads")
    task = factory.tasks("train")[0]
    assert factory.expert(task)(factory.make().reset(task, seed=0)) == "heads"
    assert GymnasiumTextFactory(make=Coin, expert=always_heads).expert(task) is not None
    assert GymnasiumTextFactory(make=Coin).expert(task) is None


@given(st.text())
def test_actions_are_passed_on_unchanged(action):
    factory = GymnasiumTextFactory(make=Coin)
    results, _ = rollout(factory, factory.tasks("train")[0], [action])
    assert results[1].messages[0].content.endswith(f"and you said {action}")


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_the_documentation_page_is_correct(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs/environments/gymnasium.md").read_text()
    wrapped, episode = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("echo.py").write_text(wrapped)
    exec(compile(episode, "gymnasium.md", "exec"), {})
    assert capsys.readouterr().out == "Say pear.\n1.0\n"
    options = set(inspect.signature(GymnasiumTextFactory).parameters)
    assert options == {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall("`(.*?)`", row)
    }
