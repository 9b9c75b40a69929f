"""Custom environments in the trainer's process: what they raise is an environment failure."""

import math

import pytest

from envs.counting import CountingFactory
from envs.worlds import failing
from seeupo.envs.pool.pool import EnvPool
from seeupo.types import FailureKind, StepResult, Tool


def pool_with(step):
    class Factory(CountingFactory):
        def make(self):
            env = super().make()
            env.step = step
            return env

    return EnvPool(Factory())


def step_of(pool):
    env = pool.env()
    env.reset(pool.tasks("easy")[0], seed=0)
    return env.step("1")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("odd")], ids=repr)
def test_exceptions_of_an_environment_are_environment_failures(error):
    def step(text):
        raise error

    with pool_with(step) as pool, failing(FailureKind.RAISED, match=type(error).__name__):
        step_of(pool)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_step_rewards_must_be_finite(reward):
    with pool_with(lambda text: StepResult((), reward=reward)) as pool, failing(FailureKind.RAISED, match="finite"):
        step_of(pool)


def test_answers_that_are_not_json_are_environment_failures():
    tools = (Tool("f", "", {"choices": {1, 2}}),)
    with pool_with(lambda text: StepResult((), tools)) as pool, failing(FailureKind.RAISED, match="JSON schema"):
        step_of(pool)
