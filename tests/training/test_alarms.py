import math
import re
from dataclasses import fields

import pytest

from seeupo.algorithms import SeeUPO
from seeupo.config.schema import Recipe, WarmStartSettings
from seeupo.training.alarms import Alarms


def usual(**changes) -> dict:
    """An iteration in which nothing is wrong."""
    record = {
        "kind": "iteration", "reward_mean": 0.4, "success": 0.4, "episodes": 100, "groups": 10, "dead_groups": 3,
        "failed_episodes": 0, "truncated_responses": 0, "entropy": 0.6, "sampler_gap": 1e-6,
        "algorithm": {"optimizer_steps": 2.0},
        "turns": [{"turn": 1, **turn()}, {"turn": 0, **turn()}], "timings": {},
    }  # fmt: skip
    return {**record, **changes}


def turn(**changes) -> dict:
    return {"clip_fraction": 0.1, "carry_max": 1.5, "grad_norm": 0.7, **changes}


def turns(**changes) -> dict:
    return {"turns": [{"turn": 1, **turn()}, {"turn": 0, **turn(**changes)}]}


class Run:
    """Records one after another, and the alarms that they raised."""

    def __init__(self) -> None:
        self.alarms, self.iteration = Alarms(), 0

    def hears(self, count: int = 1, **changes) -> list[str]:
        texts = []
        for _ in range(count):
            self.iteration += 1
            texts += self.alarms.check(usual(iteration=self.iteration, **changes))
        return texts


EQUAL = {"dead_groups": 10, "algorithm": {"optimizer_steps": 0.0}}

# What is wrong, for how many iterations, a word of the alarm, its number, a key that it names.
CASES = {
    "dead, solved": ({"dead_groups": 8, "success": 0.95}, 5, "solved in every attempt", "80%", "environment.options"),
    "dead, failed": ({"dead_groups": 8, "success": 0.02}, 5, "fail in every attempt", "80%", "warm_start.batches"),
    "dead, mixed": ({"dead_groups": 8, "success": 0.5}, 5, "either always", "80%", "collect.equal_rounds"),
    "entropy": ({"entropy": 0.009}, 1, "entropy is", "0.009", "algorithm.entropy_coef"),
    "carry": (turns(carry_max=12.5), 1, "M / A reached", "12.5", "algorithm.carry_clip"),
    "clip always": ({"turns": [{"turn": 0, **turn(clip_fraction=0.6)}]}, 5, "more than half", "0.60", "algorithm.clip"),
    "gap": ({"sampler_gap": 0.002}, 1, "sampler", "0.002", "model.dtype"),
    "failed": ({"failed_episodes": 6}, 1, "infrastructure", "6.0%", "agent.concurrency"),
    "cut": ({"truncated_responses": 21}, 1, "were cut", "0.21", "agent.max_tokens"),
    "gradient": (turns(grad_norm=math.nan), 1, "not finite", "", "optimizer.max_grad_norm"),
    "gradient, infinite": (turns(grad_norm=math.inf), 1, "not finite", "", "optimizer.max_grad_norm"),
    "no step": ({"algorithm": {"optimizer_steps": 0.0}}, 1, "no optimizer step", "", "collect.tasks"),
    "no step, told by rewards": ({"algorithm": {}, "dead_groups": 10}, 1, "no optimizer step", "", "collect.tasks"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_alarm_is_raised_once_and_again_after_it_has_cleared(case):
    changes, count, words, number, key = CASES[case]
    run = Run()

    def raised(repeat: int, **what) -> list[str]:
        return [text for text in run.hears(repeat, **what) if words in text]

    assert run.hears(20) == []
    (text,) = raised(count, **changes)
    assert number in text
    assert key in text
    assert text.startswith("iteration ")
    assert raised(20, **changes) == []
    assert raised(20) == []
    assert len(raised(count, **changes)) == 1


def test_nothing_is_said_of_a_usual_run_or_of_one_that_reports_little():
    assert Run().hears(60) == []
    alarms = Alarms()
    little = {"kind": "iteration", "reward_mean": 0.4, "success": 0.4, "episodes": 100, "timings": {}}
    assert [alarms.check({**little, "iteration": number}) for number in range(40)] == [[]] * 40
    assert alarms.check({"kind": "evaluation", "iteration": 0, "failures": 9, "episodes": 10}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"dead_groups": 7},
        {"entropy": 0.065},
        {"entropy": 0.01, "success": 0.92},
        turns(carry_max=9.9),
        {"sampler_gap": 1e-3},
        {"failed_episodes": 5},
        {"truncated_responses": 20},
    ],
    ids=str,
)
def test_just_below_the_limit_nothing_is_said(changes):
    run = Run()
    run.hears(10)
    assert run.hears(10, **changes) == []


def test_between_the_limits_an_alarm_neither_clears_nor_repeats():
    run = Run()
    assert len(run.hears(failed_episodes=6)) == 1
    for failed in (4, 6, 3, 7):
        assert run.hears(failed_episodes=failed) == []
    assert run.hears(failed_episodes=1) == []
    assert run.hears(failed_episodes=6) == []  # it was said a moment ago
    assert run.hears(30, failed_episodes=1) == []
    assert len(run.hears(failed_episodes=6)) == 1


def test_entropy_is_compared_with_that_of_the_beginning():
    run = Run()
    run.hears(5, entropy=2.0)
    assert run.hears(10, entropy=0.25) == []
    (text,) = run.hears(entropy=0.19)
    assert "2.000 over the first 5" in text


def test_a_clip_that_never_binds_takes_20_iterations():
    run = Run()
    unbound = {"turns": [{"turn": 0, **turn(clip_fraction=0.0)}]}
    assert run.hears(19, **unbound) == []
    (text,) = run.hears(**unbound)
    assert "algorithm.clip" in text
    assert run.hears(20, **unbound) == []
    assert run.hears(20) == []
    assert len(run.hears(20, **unbound)) == 1


def test_one_turn_that_clips_is_enough_for_the_clip_to_do_something():
    one = {"turns": [{"turn": 1, **turn(clip_fraction=0.0)}, {"turn": 0, **turn(clip_fraction=0.02)}]}
    assert Run().hears(30, **one) == []


def test_success_that_falls_below_half_its_best_is_told_with_both():
    run = Run()
    run.hears(10, success=0.8)
    texts = run.hears(10, success=0.1)
    (text,) = [text for text in texts if "lost" in text]
    assert "0.80" in text
    assert "optimizer.learning_rate" in text
    # A policy that has learned next to nothing has nothing to lose.
    run = Run()
    run.hears(10, success=0.04)
    assert run.hears(20, success=0.0) == []


def test_ten_iterations_of_equal_rewards_say_that_training_cannot_progress():
    run = Run()
    early = run.hears(9, **EQUAL, success=0.0)
    assert not any("cannot progress" in text for text in early)
    (text,) = [text for text in run.hears(**EQUAL, success=0.0) if "cannot progress" in text]
    assert "10 iterations" in text
    assert "warm_start.batches" in text
    assert run.hears(5, **EQUAL, success=0.0) == []
    run.hears(dead_groups=9)
    assert not any("cannot progress" in text for text in run.hears(9, **EQUAL, success=0.0))


def test_every_key_that_an_alarm_names_is_a_key_of_the_recipe():
    sections = {field.name: type(getattr(Recipe(), field.name)) for field in fields(Recipe)}
    sections |= {"algorithm": SeeUPO, "warm_start": WarmStartSettings}
    texts = []
    for changes, count, *_ in CASES.values():
        texts += Run().hears(max(10, count), **changes)
    texts += Run().hears(20, turns=[{"turn": 0, **turn(clip_fraction=0.0)}]) + Run().hears(10, **EQUAL)
    falling = Run()
    falling.hears(10, success=0.8)
    texts += falling.hears(10, success=0.1)
    named = set(re.findall(rf"\b({'|'.join(sections)})\.(\w+)", "\n".join(texts)))
    assert len(named) > 10
    for section, key in named:
        assert key in {field.name for field in fields(sections[section])}, f"{section}.{key}"


def test_a_critic_that_warms_up_is_no_reason_to_worry():
    assert Run().hears(5, algorithm={"optimizer_steps": 0.0, "critic_steps": 4.0}) == []
