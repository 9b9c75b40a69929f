"""Environments of Gymnasium by their ids, as text."""

import pytest

from envs.worlds import HAS_SANDBOX
from seeupo.envs.gymnasium_text import GymnasiumTextFactory
from seeupo.envs.gymnasium_text.by_id import without_colors, written
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError

gymnasium = pytest.importorskip("gymnasium")
numpy = pytest.importorskip("numpy")
DOWN, RIGHT = "1", "2"
TO_THE_GOAL = [DOWN, DOWN, RIGHT, RIGHT, DOWN, RIGHT]
NOT_SLIPPERY = {"id": "FrozenLake-v1", "arguments": {"is_slippery": False}}


class Echo(gymnasium.Env):
    """Repeat the word that is shown."""

    observation_space = gymnasium.spaces.Text(8)
    action_space = gymnasium.spaces.Text(4, charset="ab")

    def reset(self, *, seed=None, options=None):
        return "say ab", {}

    def step(self, action):
        return "over", float(action == "ab"), True, False, {}


class Shape(gymnasium.Env):
    """An environment with given spaces."""

    def __init__(self, observations, actions):
        self.observation_space, self.action_space = observations, actions


@pytest.fixture(autouse=True)
def registered():
    for made in (Echo, Shape):
        gymnasium.register(f"{made.__name__}-v0", made)
    yield
    for made in (Echo, Shape):
        gymnasium.registry.pop(f"{made.__name__}-v0")


def play(texts, **options):
    factory = GymnasiumTextFactory(**options)
    env = factory.make()
    results = [env.reset(factory.tasks("train")[0], seed=0), *map(env.step, texts)]
    score = env.score()
    env.close()
    return results, [result.messages[0].content for result in results], score


def test_a_discrete_environment_is_drawn_and_played_by_numbers():
    results, texts, score = play(TO_THE_GOAL, **NOT_SLIPPERY)
    lake, picture, request = texts[0].split("\n\n")
    assert lake == "FrozenLake-v1"
    assert picture == "[S]FFF\nFHFH\nFFFH\nHFFG\nObservation: 0"
    assert request == "Reply with an action: 0, 1, 2 or 3."
    assert texts[1].endswith("SFFF\n[F]HFH\nFFFH\nHFFG\nObservation: 4")
    assert [result.terminated for result in results] == [False] * 6 + [True]
    assert score == 1.0


def test_text_that_is_no_action_has_no_effect():
    wrong = ["", "4", "-1", "1.0", "down", "1 2", "\u0661", "\0", "9" * 10_000]
    results, texts, score = play([*wrong, *TO_THE_GOAL], **NOT_SLIPPERY)
    assert set(texts[1:10]) == {"Error: Reply with an action: 0, 1, 2 or 3."}
    assert [result.reward for result in results[1:10]] == [0.0] * 9
    assert score == 1.0


def test_actions_and_instructions_can_be_named():
    names = ["left", "Down", "right", "up"]
    actions = [" down\n", "DOWN", "right", "right", "down", "right"]
    _, texts, score = play(actions, **NOT_SLIPPERY, actions=names, instructions="Reach G; avoid H.")
    assert texts[0].startswith("Reach G; avoid H.\n\n[S]FFF")
    assert texts[0].endswith("Reply with an action: left, down, right or up.")
    assert score == 1.0


def test_a_text_environment_is_passed_through():
    _, texts, score = play(["ab"], id="Echo-v0")
    assert texts[0].startswith("Echo-v0\n\nsay ab\n\nReply with an action: Text(")
    assert score == 1.0
    results, texts, score = play(["ccc"], id="Echo-v0")
    assert texts[1].startswith("Error: ")
    assert (results[1].done, score) == (False, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "NoSuchLake-v1"}, "NoSuchLake"),
        ({"id": "FrozenLake-v1", "arguments": {"size": 3}}, "size"),
        ({"id": "subprocess:Lake-v1"}, "name one of yours with make"),
        ({"id": "GymV26Environment-v0", "arguments": {"env_id": "subprocess:Lake-v1"}}, "name one of yours with make"),
        ({"id": "FrozenLake-v1", "actions": ["left"]}, "4 different names"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b", "c", "C"]}, "4 different names"),
        ({"id": "FrozenLake-v1", "make": Echo}, "either the option id"),
        ({}, "either the option id"),
        ({"make": Echo, "actions": ["a"]}, "are for id"),
    ],
)
def test_wrong_options_of_an_id_are_errors_at_once(options, message):
    with pytest.raises(EnvError, match=message):
        GymnasiumTextFactory(**options)


def test_spaces_that_are_no_text_are_refused():
    spaces = gymnasium.spaces
    few, picture, numbers = spaces.Discrete(2), spaces.Box(0, 255, (9, 9), numpy.uint8), spaces.Box(0, 1, (2,))
    for observations, actions, message in [
        (picture, few, "observations"),
        (spaces.Dict({"a": few, "b": spaces.Tuple([picture])}), few, "observations"),
        (few, numbers, "actions"),
    ]:
        with pytest.raises(EnvError, match=f"its {message} are .*Box"):
            GymnasiumTextFactory(id="Shape-v0", arguments={"observations": observations, "actions": actions})
    GymnasiumTextFactory(id="Shape-v0", arguments={"observations": numbers, "actions": spaces.Discrete(2, start=5)})


def test_observations_are_written_in_short_numbers():
    observed = {"a": (numpy.int64(3), 0), "b": numpy.array([0.123456, -2.0], dtype=numpy.float32), "c": "text"}
    assert written(observed) == "a: (3, 0), b: (0.1235, -2), c: text"


@pytest.mark.parametrize(
    ("drawn", "plain"),
    [
        ("a\x1b[41mS\x1b[0mb", "a[S]b"),
        ("\x1b[34;1mB\x1b[0m", "B(blue)"),
        ("\x1b[43m\x1b[35mY\x1b[0m\x1b[0m", "[Y(magenta)]"),
        ("\x1b[1mx\x1b[0m", "x"),
    ],
)
def test_colors_become_text(drawn, plain):
    assert without_colors(drawn) == plain


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_an_environment_by_id_runs_in_a_worker_without_consent():
    with EnvPool("gymnasium", options=NOT_SLIPPERY, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        env = pool.env()
        env.reset(pool.tasks("test")[0], seed=0)
        for action in TO_THE_GOAL:
            result = env.step(action)
        assert result.terminated
        assert env.score() == 1.0
