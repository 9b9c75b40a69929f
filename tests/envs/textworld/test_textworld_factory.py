"""Tests that do not need TextWorld: tasks, options, and the text of observations."""

import os
import sys
from types import SimpleNamespace

import pytest

from seeupo.envs.options import check_options
from seeupo.envs.pool.serve import load_factory
from seeupo.envs.textworld import TextworldFactory
from seeupo.envs.textworld.games import LEVELS, mounts, remove_oldest, shared_games
from seeupo.envs.textworld.textworld_env import narration, recipe_of
from seeupo.errors import EnvError
from seeupo.types import Task


def test_splits_share_no_game():
    factory = TextworldFactory(level="all", train=30, test=20)
    recipes = {s: {recipe_of(task) for task in factory.tasks(s)} for s in factory.splits}
    assert [len(recipes[split]) for split in ("train", "test")] == [120, 80]
    assert not recipes["train"] & recipes["test"]
    assert factory.tasks("test") == TextworldFactory(level="all", train=30, test=20).tasks("test")


def test_a_level_is_a_kind_of_task():
    assert {task.kind for task in TextworldFactory().tasks("train")} == {"medium"}
    assert {task.kind for task in TextworldFactory(level="all").tasks("train")} == set(LEVELS)


def test_ids_are_unique():
    factory = TextworldFactory(level="all")
    ids = [task.id for split in factory.splits for task in factory.tasks(split)]
    assert len(set(ids)) == len(ids) == 600


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"level": "mediun"}, "level='mediun'"),
        ({"train": -1}, "train=-1"),
        ({"test": 2_000_000}, "test=2000000"),
        ({"theme": "castle"}, "theme='castle'"),
    ],
)
def test_wrong_options_are_errors(options, problem):
    with pytest.raises(EnvError, match=problem):
        load_factory("seeupo.envs.textworld:TextworldFactory", options)


def test_the_registry_can_check_the_options():
    check_options(TextworldFactory, {"level": "long", "train": 3, "show_commands": True})
    with pytest.raises(EnvError, match="'tiny' or"):
        check_options(TextworldFactory, {"level": "huge"})


def test_games_of_different_themes_have_different_files():
    task = TextworldFactory().tasks("train")[0]
    assert recipe_of(task).name == "medium-0-goal"
    assert recipe_of(task, "basic").name == "medium-0-goal-basic"


def test_unknown_kinds_are_refused():
    with pytest.raises(EnvError, match="no level 'mediun'; did you mean 'medium'"):
        recipe_of(Task("a", "train", kind="mediun"))


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ({"wrong_comand": 0.1}, "no mistake 'wrong_comand'; did you mean 'wrong_command'"),
        ({"wrong_command": 1.5}, r"wrong_command is 1.5; expected a number in \[0, 1\]"),
    ],
)
def test_wrong_rates_of_mistakes_are_errors(monkeypatch, rates, problem):
    monkeypatch.setattr("seeupo.envs.textworld.textworld_env.game_file", lambda recipe: "game.z8")
    factory = TextworldFactory()
    with pytest.raises(EnvError, match=problem):
        factory.noisy_expert(factory.tasks("train")[0], seed=0, rates=rates)


def test_there_is_no_step_before_a_reset():
    with pytest.raises(RuntimeError, match="call reset first"):
        TextworldFactory().make().step("look")


@pytest.mark.parametrize(("won", "score"), [(True, 1.0), (False, 0.0)])
def test_a_game_can_end_by_winning_or_losing(monkeypatch, won, score):
    class Game:
        def reset(self):
            return {"feedback": "Begin.", "won": False, "lost": False}

        def step(self, command):
            return {"feedback": "The end.", "won": won, "lost": not won}, 0, True

        def close(self): ...

    package = SimpleNamespace(EnvInfos=lambda **infos: infos, start=lambda game, infos: Game())
    monkeypatch.setitem(sys.modules, "textworld", package)
    monkeypatch.setattr("seeupo.envs.textworld.textworld_env.game_file", lambda recipe: "game.z8")
    env = TextworldFactory().make()
    env.reset(TextworldFactory().tasks("train")[0], seed=0)
    result = env.step("look")
    assert (result.terminated, result.reward, env.score()) == (True, score, score)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("look")


def test_narration_removes_title_prompt_and_status_line():
    feedback = (
        "\n\n   \\$$    \\$$$$  \n   | $$$\n\nFind the key.\n\n\n\n-= Attic =-  \nAn attic.\n\n\n"
        "Would you like to RESTART, RESTORE a saved game, QUIT or UNDO the last command?\n"
        ">                                -= Attic =-0/1"
    )
    assert narration(feedback) == "Find the key.\n\n-= Attic =-\nAn attic."


def test_the_sandbox_mounts_the_shared_games(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path))
    assert mounts({}, role="run") == {}
    shared_games().mkdir(parents=True)
    assert mounts({}, role="run") == {shared_games(): shared_games()}


def test_a_worker_removes_its_oldest_games(tmp_path):
    for number in range(201):
        for suffix in (".z8", ".json"):
            (tmp_path / f"{number}{suffix}").touch()
    for number in range(201):
        os.utime(tmp_path / f"{number}.z8", (1000 - number, 1000 - number))
    remove_oldest(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{number}{suffix}" for number in range(199) for suffix in (".z8", ".json")}
