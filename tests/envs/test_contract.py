"""Environments that break the contract are told what it requires, at the first task, with their file and line."""

import math
import re

import numpy
import pytest

from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.types import Message, StepResult, Task, Tool, ToolCall

HELLO = (Message("user", "hello"),)


class Env:
    first, second, value = StepResult(HELLO), StepResult(HELLO, terminated=True), 1.0

    def reset(self, task, *, seed):
        return self.first

    def step(self, text):
        return self.second

    def score(self):
        return self.value

    def close(self): ...


class Factory:
    splits = ("train", "test")
    listed = (Task("a", "train"), Task("b", "train"))
    env, solver, words = Env, None, ()

    def tasks(self, split):
        return self.listed

    def make(self):
        return self.env()

    def expert(self, task):
        return self.solver

    def vocabulary(self):
        return self.words


def factory(*, env=None, **attributes):
    made = type("Env", (Env,), env or {})
    if "solver" in attributes:
        attributes["solver"] = staticmethod(attributes["solver"])
    return type("Factory", (Factory,), {"env": made, **attributes})()


def try_all(environment):
    """Use everything that an environment offers, as training does."""
    with EnvPool(environment) as pool:
        tasks = pool.first_tasks("train", None)
        pool.vocabulary()
        pool.separate_step_rewards()
        pool.try_task(tasks[0])
        if (expert := pool.expert(tasks[0])) is not None:
            expert(StepResult(HELLO))


def test_a_correct_environment_passes():
    try_all(factory(solver=lambda result: "x", words=["x"]))
    try_all(factory(env={"value": numpy.float32(0.5)}))


BROKEN_RESULTS = [
    ((HELLO, 1.0, True), "step must return StepResult, got tuple"),
    (
        (HELLO, 1.0, True, {}),
        "got tuple of 4 items; for an environment with Gymnasium's reset and step use the adapter",
    ),
    ((HELLO, 1.0, True, False, {}), "got tuple of 5 items; for an environment with Gymnasium's reset"),
    (None, "step must return StepResult, got None"),
    ("hello", "step must return StepResult, got str"),
    (StepResult("hello"), "a StepResult with messages 'hello'; it must be a tuple of Message"),
    (StepResult(("hello",)), "a StepResult with messages 'hello'; it must be a tuple of Message"),
    (StepResult((Message("bot", "x"),)), "a Message with role 'bot'; it must be one of system, user, assistant, tool"),
    (StepResult((Message("user", 3),)), "a Message with content 3; it must be str"),
    (
        StepResult((Message("user", "", tool_calls=(ToolCall("f", "x"),)),)),
        "a ToolCall with arguments 'x'; it must be a table",
    ),
    (StepResult(HELLO, tools=("f",)), "a StepResult with tools 'f'; it must be a tuple of Tool, or None"),
    (StepResult(HELLO, tools=(Tool("f", "", None),)), "a Tool with parameters None; it must be a JSON schema"),
    (StepResult(HELLO, reward=math.nan), "a StepResult with reward nan; it must be a finite number"),
    (StepResult(HELLO, reward="1"), "a StepResult with reward '1'; it must be a finite number"),
    (StepResult(HELLO, terminated=None), "a StepResult with terminated None; it must be bool"),
    (StepResult(HELLO, truncated=numpy.bool_(True)), "a StepResult with truncated numpy.bool"),
    (StepResult(HELLO, info={"x": {1, 2}}), "a StepResult with info dict; it must be a table of JSON values"),
    (StepResult(HELLO, state_key=3), "a StepResult with state_key 3; it must be str or None"),
]


@pytest.mark.parametrize(("result", "message"), BROKEN_RESULTS)
def test_results_are_checked(result, message):
    with pytest.raises(EnvError, match=re.escape(message)):
        try_all(factory(env={"second": result}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5, "1", True, None])
def test_scores_are_numbers_from_0_to_1(value):
    shown = "str" if value == "1" else repr(value)
    with pytest.raises(EnvError, match=re.escape(f"score must return a number from 0 to 1, got {shown}")):
        try_all(factory(env={"value": value}))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"splits": "train"}, 'splits must be names such as ("train", "test"), got \'train\''),
        ({"listed": None}, "tasks must return a sequence of Task, got None"),
        ({"listed": [{"id": "a"}]}, "tasks must return a sequence of Task, got dict"),
        ({"listed": [Task(1, "train")]}, "a Task with id 1; it must be str"),
        ({"listed": [Task("a", "train", payload={"x": {1}})]}, "a Task with payload dict; it must be a table of JSON"),
        ({"listed": [Task("a", "train")] * 2}, "tasks must return unique task ids, got 'a' twice"),
        ({"env": {"reset": None, "close": None}}, "must return an environment with reset, step, score and close, got"),
        ({"env": {"first": None}}, "reset must return StepResult, got None"),
        ({"expert": lambda self, task: "x"}, "expert must return a function or None, got str"),
        ({"solver": lambda result: None}, "expert must return an expert that returns str, got None"),
        ({"separate_step_rewards": "yes"}, "separate_step_rewards must be True or False, got 'yes'"),
        ({"words": "abc"}, "vocabulary must return a sequence of str, got str"),
    ],
)
def test_the_factory_is_checked(attributes, message):
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        try_all(factory(**attributes))
    assert type(caught.value).__name__ in ("EnvError", "EnvFailure")


def test_the_message_ends_with_the_file_and_line_of_the_method():
    line = Env.step.__code__.co_firstlineno
    with pytest.raises(EnvError) as caught:
        try_all(factory(env={"second": ()}))
    assert str(caught.value).endswith(f"step must return StepResult, got tuple ({__file__}:{line})")
    assert "\n" not in str(caught.value)
