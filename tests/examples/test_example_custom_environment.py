"""The example `custom_environment.py` is a sound environment, and training on it runs."""

import custom_environment
import pytest

from seeupo.envs.pool.pool import EnvPool
from seeupo.evaluation.scripted import check_environment
from seeupo.types import Message, StepResult

FACTORY = custom_environment.GuessNumberFactory()


def fast(run_iterations: int) -> dict[str, dict[str, object]]:
    return {
        **custom_environment.RECIPE,
        "run": {"iterations": run_iterations},
        "model": {"name": "tiny", "tiny": {"width": 16, "layers": 1, "heads": 2, "context": 64}},
        "collect": {"tasks": 4, "group_size": 4},
        "evaluation": {"tasks": 4, "every": 0},
        "warm_start": {"episodes": 16, "batches": 2, "batch_episodes": 4},
    }


def test_training_shows_each_iteration_and_leaves_a_policy(tmp_path, capsys):
    with pytest.warns(UserWarning, match="no optimizer step"):  # the warm start is too short to solve a task
        success = custom_environment.main(fast(2), tmp_path / "run")
    assert 0 <= success <= 1
    shown = capsys.readouterr()
    assert [f"iteration {number} of 2:" in shown.err for number in (1, 2)] == [True, True]
    assert "greedy" in shown.out
    assert (tmp_path / "run" / "policy" / "model.safetensors").is_file()


def test_no_op_policy_never_succeeds_and_expert_sometimes_does():
    with EnvPool(FACTORY) as pool:
        expert, no_op = check_environment(pool, ["test"])
    assert expert.failures == no_op.failures == ()
    assert no_op.solved == 0
    assert expert.solved > 0


@pytest.mark.parametrize("task", FACTORY.tasks("train")[:8], ids=lambda task: task.id)
def test_binary_search_always_succeeds_within_the_turn_limit(task):
    env, numbers = FACTORY.make(), list(custom_environment.NUMBERS)
    env.reset(task, seed=0)
    for _ in range(custom_environment.RECIPE["agent"]["max_turns"]):
        guess = numbers[len(numbers) // 2]
        result = env.step(guess)
        if result.terminated:
            break
        hint = result.messages[-1].content
        numbers = [n for n in numbers if (n > guess if hint == "higher" else n < guess)]
    assert env.score() == 1.0


@pytest.mark.parametrize("text", ["", "8", "1 2", "higher", "\x00", "1" * 100_000])
def test_text_that_is_not_a_number_is_answered_with_an_error(text):
    env = FACTORY.make()
    env.reset(FACTORY.tasks("train")[0], seed=0)
    assert env.step(text) == StepResult((Message("user", "error"),))
    assert env.score() == 0.0
