"""Prompts with a reward function: one reply, one score, and no score at all when the function fails."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.worlds import everywhere
from seeupo import reward_function
from seeupo.envs.dataset.dataset_env import DatasetFactory, RewardError
from seeupo.envs.failures import EnvFailure
from seeupo.envs.options import check_options
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.types import Task

ROWS = [{"id": "a", "prompt": "2 + 2 =", "answer": "4"}, {"id": "b", "prompt": "hum", "kind": "music"}]


MINE = """
from seeupo import reward_function

@reward_function
def length(completion, row):
    return min(1.0, len(completion) / 8)
"""


@reward_function
def exact(completion, row):
    return completion.strip() == row.get("answer")


@pytest.fixture
def train(tmp_path):
    return written(tmp_path / "train.jsonl", ROWS)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def reply(factory, text, number=0):
    env = factory.make()
    task = factory.tasks("train")[number]
    env.reset(task, seed=0)
    result = env.step(text)
    return result, env.score()


def test_a_reply_is_scored_once_and_ends_the_episode(train):
    factory = DatasetFactory(train=train, reward=exact)
    env = factory.make()
    opening = env.reset(factory.tasks("train")[0], seed=3)
    assert [message.content for message in opening.messages] == ["2 + 2 ="]
    assert env.score() == 0.0
    result = env.step(" 4\n")
    assert (result.terminated, result.reward, env.score()) == (True, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("4")
    env.reset(factory.tasks("train")[1], seed=3)
    assert env.score() == 0.0


def test_the_splits_are_the_files(tmp_path, train):
    test = written(tmp_path / "test.jsonl", [{"id": "a", "prompt": "1 + 1 =", "answer": "2"}])
    assert DatasetFactory(train=train, reward=exact).splits == ("train",)
    factory = DatasetFactory(train=train, test=test, reward=exact)
    assert factory.splits == ("train", "test")
    assert factory.tasks("train") == [Task("a", "train"), Task("b", "train", kind="music")]
    assert factory.expert(factory.tasks("test")[0])(None) == "2"


def test_the_answers_are_not_in_the_tasks(train):
    assert all(not task.payload for task in DatasetFactory(train=train, reward=exact).tasks("train"))


def test_the_expert_replies_with_the_answer(train):
    factory = DatasetFactory(train=train, reward=exact)
    first, second = factory.tasks("train")
    assert factory.expert(first)(None) == "4"
    assert factory.expert(second) is None


@pytest.mark.parametrize(
    ("value", "score"), [(True, 1.0), (0, 0.0), (0.75, 0.75), (numpy.float32(0.5), 0.5), (Fraction(1, 4), 0.25)]
)
def test_any_real_number_from_0_to_1_is_a_score(train, value, score):
    found = reply(DatasetFactory(train=train, reward=lambda completion, row: value), "x")[1]
    assert type(found) is float
    assert found == score


@pytest.mark.parametrize("value", [None, "1", math.nan, math.inf, -2.5, 1.1, 1j, [1.0], numpy.array([1.0])])
def test_a_reward_that_is_not_a_number_from_0_to_1_is_an_error(train, value):
    def odd(completion, row):
        return value

    with pytest.raises(RewardError, match=r"odd returned .* for line 2 of train.jsonl; expected a number from 0 to 1"):
        reply(DatasetFactory(train=train, reward=odd), "x", number=1)


def test_a_reward_function_that_raises_gives_no_score(train):
    def broken(completion, row):
        return row["missing"]

    with pytest.raises(RewardError, match=r"broken failed on line 1 of train.jsonl: KeyError: 'missing'"):
        reply(DatasetFactory(train=train, reward=broken), "x")
    with EnvPool(DatasetFactory(train=train, reward=broken)) as pool:
        env = pool.env()
        env.reset(pool.tasks("train")[0], seed=0)
        with pytest.raises(EnvFailure, match="broken failed on line 1"):
            env.step("x")


def test_a_reward_too_large_for_a_float_is_an_error(train):
    with pytest.raises(RewardError, match=r"failed on line 1 of train.jsonl: OverflowError"):
        reply(DatasetFactory(train=train, reward=lambda completion, row: 10**400), "x")


def test_a_function_cannot_change_the_rows(train):
    def greedy(completion, row):
        return 1.0 if row.pop("answer", None) else 0.0

    factory = DatasetFactory(train=train, reward=greedy)
    assert [reply(factory, "x")[1] for _ in range(2)] == [1.0, 1.0]


def test_reward_functions_are_loaded_from_files_and_modules(tmp_path, train):
    (tmp_path / "mine.py").write_text(MINE)
    assert reply(DatasetFactory(train=train, reward=f"{tmp_path}/mine.py:length"), "four")[1] == 0.5
    assert reply(DatasetFactory(train=train, reward=f"{__name__}:exact"), "4")[1] == 1.0


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("exact", "expected 'module:name' or"),
        (":exact", "expected 'module:name'"),
        ("no_such_module:exact", "there is no module 'no_such_module'"),
        ("nowhere.py:exact", "file nowhere.py does not exist"),
        ("math:exact", "math has no exact"),
        ("math:pi", "not usable as reward function: expected a function marked with @seeupo.reward_function"),
        ("math:sqrt", "not usable as reward function"),
        ("fractions:Fraction", "not usable as reward function"),
        ("{folder}/wrong.py:exact", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_an_error(tmp_path, train, reward, problem):
    (tmp_path / "wrong.py").write_text("def exact(")
    with pytest.raises(EnvError, match=problem):
        DatasetFactory(train=train, reward=reward.format(folder=tmp_path))


def test_the_registry_can_check_the_options(train):
    check_options(DatasetFactory, {"train": train, "reward": "a:b", "test": None})
    with pytest.raises(EnvError, match="option 'reward' is required"):
        check_options(DatasetFactory, {"train": train})
    with pytest.raises(EnvError, match="option test=3"):
        check_options(DatasetFactory, {"train": train, "reward": "a:b", "test": 3})


@everywhere
@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_through_the_pool(tmp_path, train, unsandboxed):
    (tmp_path / "mine.py").write_text(MINE)
    reward = f"{tmp_path}/mine.py:length"
    options = {"train": train, "reward": reward}
    with EnvPool("dataset", options=options, workers=1, trust=[reward], unsandboxed=unsandboxed) as pool:
        task = pool.tasks("train")[0]
        for policy, score in [(pool.expert(task), 0.125), (lambda _: "", 0.0)]:
            env = pool.env()
            env.step(policy(env.reset(task, seed=0)))
            assert env.score() == score
            env.close()


@given(text=st.text())
def test_replies_reach_the_reward_function_unchanged(train, text):
    seen = []
    reply(DatasetFactory(train=train, reward=lambda completion, row: seen.append(completion) or 0.0), text)
    assert seen == [text]


def test_large_and_malformed_replies_reach_the_reward_function(train):
    for text in ["a" * 1_000_000, "\x00\ud800", "__import__('os').abort()"]:
        same = DatasetFactory(train=train, reward=lambda completion, row, text=text: completion == text)
        assert reply(same, text)[1] == 1.0


def test_the_documentation_page_is_correct(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs/environments/dataset.md").read_text()
    (rows,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    function, episode = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("sums.jsonl").write_text(rows)
    Path("rewards.py").write_text(function)
    exec(compile(episode, "dataset.md", "exec"), {})
    assert capsys.readouterr().out == "What is 2 + 2? Reply with the number alone.\n1.0\n"

    right = '{"id": "right-%d", "prompt": "a"}\n'
    lines = [right % n for n in range(9)]
    lines[1] = '{"id": "sum-1", "prompt": "a"}\n'
    lines[2:3] = ['{"prompt": "a"\n']
    lines[7:9] = ["{}\n", '{"id": "sum-1", "prompt": "a"}\n']
    Path("sums.jsonl").write_text("".join(lines))
    with pytest.raises(EnvError) as error:
        DatasetFactory(train="sums.jsonl", reward=exact)
    assert str(error.value) in page.replace("\n    ", "\n")
