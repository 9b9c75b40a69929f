import math
import re
from dataclasses import fields

import pytest

from seeupo.algorithms import SeeUPO
from seeupo.config.schema import Recipe, WarmStartSettings
from seeupo.runs.alarms import Alarms, untrained_warning


def healthy(**changes) -> dict:
    """Return an iteration that raises no alarm."""
    record = {
        "kind": "iteration", "reward_mean": 0.4, "success": 0.4, "episodes": 100, "groups": 10, "dead_groups": 3,
        "failed_episodes": 0, "truncated_responses": 0, "entropy": 0.6, "sampler_gap": 1e-6,
        "algorithm": {"optimizer_steps": 2.0},
        "turns": [{"turn": 1, **turn()}, {"turn": 0, **turn()}], "timings": {},
    }  # fmt: skip
    return {**record, **changes}


def turn(**changes) -> dict:
    healthy = {
        "clip_fraction": 0.1,
        "carry_max": 1.5,
        "grad_norm": 0.7,
        "expected_gain": 0.01,
        "expected_gain_se": 0.01,
    }
    return {**healthy, **changes}


def turns(**changes) -> dict:
    return {"turns": [{"turn": 1, **turn()}, {"turn": 0, **turn(**changes)}]}


class Run:
    """A run that checks one record after another."""

    def __init__(self, dtype: str = "float32", threads: int = 1) -> None:
        self.alarms, self.iteration = Alarms(dtype, threads), 0

    def check(self, count: int = 1, **changes) -> list[str]:
        """Add `count` iterations and return the messages of the alarms that they raise."""
        texts = []
        for _ in range(count):
            self.iteration += 1
            texts += self.alarms.check(healthy(iteration=self.iteration, **changes))
        return texts


# Changes to a healthy record, for how many iterations, keyword of the alarm, its value, a key that it names.
CASES = {
    "dead, solved": ({"dead_groups": 8, "success": 0.95}, 5, "solved in every attempt", "80%", "environment.options"),
    "dead, failed": ({"dead_groups": 8, "success": 0.02}, 5, "fail in every attempt", "80%", "warm_start.batches"),
    "dead, mixed": ({"dead_groups": 8, "success": 0.5}, 5, "always or never", "80%", "collect.equal_rounds"),
    "entropy": ({"entropy": 0.009}, 1, "entropy is", "0.009", "algorithm.entropy_coef"),
    "carry": (turns(carry_max=12.5), 1, "M reached", "12.5", "algorithm.trust_region"),
    "clip always": ({"turns": [{"turn": 0, **turn(clip_fraction=0.6)}]}, 5, "more than half", "0.60", "algorithm.clip"),
    "gap": ({"sampler_gap": 0.002}, 1, "the 0.001 that rounding explains in float32", "0.002", "latest weights"),
    "failed": ({"failed_episodes": 6}, 1, "infrastructure", "6.0%", "agent.concurrency"),
    "cut": ({"truncated_responses": 21}, 1, "truncated", "0.21", "agent.max_tokens"),
    "gain": (
        turns(expected_gain=-0.02, expected_gain_se=0.01),
        5,
        "gain of turn 1",
        "3.1 standard errors",
        "algorithm.trust_region",
    ),
    "gradient": (turns(grad_norm=math.nan), 1, "not finite", "", "optimizer.max_grad_norm"),
    "gradient, infinite": (turns(grad_norm=math.inf), 1, "not finite", "", "optimizer.max_grad_norm"),
    "no step": ({"algorithm": {"optimizer_steps": 0.0}}, 1, "no optimizer step", "", "collect.tasks"),
    "no step, by rewards": ({"algorithm": {}, "dead_groups": 10}, 1, "no optimizer step", "", "collect.tasks"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_alarm_is_raised_once_and_again_after_it_cleared(case):
    changes, count, words, number, key = CASES[case]
    run = Run()

    def raised(repeat: int, **what) -> list[str]:
        return [text for text in run.check(repeat, **what) if words in text]

    assert run.check(20) == []
    (text,) = raised(count, **changes)
    assert number in text
    assert key in text
    assert text.startswith("iteration ")
    assert raised(20, **changes) == []
    assert raised(20) == []
    assert len(raised(count, **changes)) == 1


def test_healthy_and_minimal_records_raise_no_alarm():
    assert Run().check(60) == []
    alarms = Alarms()
    minimal = {"kind": "iteration", "reward_mean": 0.4, "success": 0.4, "episodes": 100, "timings": {}}
    assert [alarms.check({**minimal, "iteration": number}) for number in range(40)] == [[]] * 40
    assert alarms.check({"kind": "evaluation", "iteration": 0, "failures": 9, "episodes": 10}) == []


def updates(seconds: float, tokens: int = 1000) -> dict:
    return {"timings": {"collect": 1.0, "update": seconds}, "update_tokens": tokens}


def test_updates_that_become_several_times_slower_are_noted_with_the_setting_that_helps():
    run = Run(threads=2)
    assert run.check(3, **updates(2.0)) == []
    assert run.check(9, **updates(5.9)) == []
    assert run.check(1, **updates(60.0)) == []  # one slow update
    (text,) = run.check(9, **updates(8.0))
    assert "4 times" in text
    assert "OMP_WAIT_POLICY=passive" in text
    assert "--run.threads 1 --accept-changes" in text
    assert run.check(9, **updates(8.0)) == run.check(40, **updates(2.0)) == []


@pytest.mark.parametrize(
    ("threads", "later"),
    [(1, updates(20.0)), (2, updates(20.0, 10_000)), (2, updates(0.2, 10)), (2, updates(0.0, 0)), (2, {"timings": 1})],
    ids=["one thread", "longer trajectories", "few tokens", "no update", "malformed"],
)
def test_updates_are_not_called_slow_if_threads_are_not_the_reason(threads, later):
    run = Run(threads=threads)
    assert run.check(3, **updates(2.0)) == run.check(9, **later) == []


def test_equal_partial_scores_are_not_called_failures():
    assert Run().check(9, dead_groups=9, success=0.02, partial=0.7) == []
    (text,) = Run().check(9, dead_groups=9, success=0.02, partial=0.1)
    assert "fail in every attempt" in text


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
def test_values_just_below_the_threshold_raise_no_alarm(changes):
    run = Run()
    run.check(10)
    assert run.check(10, **changes) == []


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-3), ("float64", 1e-3), ("bfloat16", 0.05)])
def test_the_expected_gap_depends_on_the_data_type(dtype, bound):
    run = Run(dtype)
    assert run.check(sampler_gap=bound) == []
    (text,) = run.check(sampler_gap=1.1 * bound)
    assert f"more than the {bound:g} that rounding explains in {dtype}" in text
    assert ("mismatch.tis_cap" in text) == (dtype == "bfloat16")
    assert run.check(30, sampler_gap=0.4 * bound) == []  # cleared and cooled down
    assert len(run.check(sampler_gap=1.1 * bound)) == 1


def test_between_the_thresholds_an_alarm_neither_clears_nor_repeats():
    run = Run()
    assert len(run.check(failed_episodes=6)) == 1
    for failed in (4, 6, 3, 7):
        assert run.check(failed_episodes=failed) == []
    assert run.check(failed_episodes=1) == []
    assert run.check(failed_episodes=6) == []  # cooling down
    assert run.check(30, failed_episodes=1) == []
    assert len(run.check(failed_episodes=6)) == 1


def test_entropy_is_compared_with_the_first_iterations():
    run = Run()
    run.check(5, entropy=2.0)
    assert run.check(10, entropy=0.25) == []
    (text,) = run.check(entropy=0.19)
    assert "2.000" in text


def test_a_clip_without_effect_is_reported_after_20_iterations():
    run = Run()
    unbound = {"turns": [{"turn": 0, **turn(clip_fraction=0.0)}]}
    assert run.check(19, **unbound) == []
    (text,) = run.check(**unbound)
    assert "algorithm.clip" in text
    assert run.check(20, **unbound) == []
    assert run.check(20) == []
    assert len(run.check(20, **unbound)) == 1


def test_one_clipped_turn_is_enough_for_the_clip_to_have_an_effect():
    one = {"turns": [{"turn": 1, **turn(clip_fraction=0.0)}, {"turn": 0, **turn(clip_fraction=0.02)}]}
    assert Run().check(30, **one) == []


def test_success_below_half_of_its_best_is_reported():
    run = Run()
    run.check(10, success=0.8)
    texts = run.check(10, success=0.1)
    (text,) = [text for text in texts if "collapsed" in text]
    assert "0.80" in text
    assert "optimizer.learning_rate" in text
    # Close to 0, a decrease is noise.
    run = Run()
    run.check(10, success=0.04)
    assert run.check(20, success=0.0) == []


def test_alarms_name_existing_recipe_keys():
    sections = {field.name: type(getattr(Recipe(), field.name)) for field in fields(Recipe)}
    sections |= {"algorithm": SeeUPO, "warm_start": WarmStartSettings}
    texts = []
    for changes, count, *_ in CASES.values():
        texts += Run().check(max(10, count), **changes)
    texts += Run().check(20, turns=[{"turn": 0, **turn(clip_fraction=0.0)}])
    falling = Run()
    falling.check(10, success=0.8)
    texts += falling.check(10, success=0.1)
    named = set(re.findall(rf"\b({'|'.join(sections)})\.(\w+)", "\n".join(texts)))
    assert len(named) > 10
    for section, key in named:
        assert key in {field.name for field in fields(sections[section])}, f"{section}.{key}"


def test_an_insignificant_loss_raises_no_alarm():
    noisy = turns(expected_gain=-0.02, expected_gain_se=0.02)  # 2.2 standard errors over 5 iterations
    assert Run().check(10, **noisy) == []
    for missing in ({"expected_gain_se": None}, {"expected_gain_se": 0.0}):
        assert Run().check(10, **turns(expected_gain=-1.0, **missing)) == []
    seldom, loss = Run(), turns(expected_gain=-0.02, expected_gain_se=0.001)
    assert seldom.check(4, **loss) == []


def test_critic_warmup_raises_no_alarm():
    assert Run().check(5, algorithm={"optimizer_steps": 0.0, "critic_steps": 4.0}) == []


@pytest.mark.parametrize(
    ("steps", "warned"),
    [([0], True), ([0, 0, 0], True), ([0, 3, 0], False), ([], False), ([None, None], False), ([0, None], False)],
)
def test_a_run_without_any_optimizer_step_is_warned_about(steps, warned):
    """An algorithm that does not count its steps may have made some."""
    counts = [{} if count is None else {"optimizer_steps": count} for count in steps]
    records = [{"kind": "evaluation"}, *(healthy(algorithm=algorithm) for algorithm in counts)]
    text = untrained_warning(records)
    assert (text is not None) == warned
    if text is not None:
        assert f"in {len(steps)} iteration" in text
        assert ("iterations" in text) == (len(steps) > 1)


def test_the_advice_for_an_untrained_run_knows_its_warm_start():
    idle = healthy(algorithm={"optimizer_steps": 0})
    cold, warmed = untrained_warning([idle]), untrained_warning([{"kind": "warm_start"}, idle])
    assert "Start with demonstrations ([warm_start])" in cold
    assert "Raise warm_start.batches" in warmed
    assert "[warm_start]" not in warmed


@pytest.mark.parametrize("algorithm", [None, [], "text", {"optimizer_steps": "0"}])
def test_damaged_records_do_not_claim_that_nothing_was_trained(algorithm):
    assert untrained_warning([healthy(algorithm=algorithm)]) is None


def evaluated(score, **changes):
    """Return the record of an evaluation before training."""
    return {"kind": "evaluation", "iteration": 0, "episodes": 64, "avg@4": {"value": score}, **changes}


def test_a_warm_start_that_is_too_short_is_named_before_training():
    alarms = Alarms()
    assert alarms.check({"kind": "warm_start", "iteration": 0, "step": 15, "loss": 2.314}) == []
    (message,) = alarms.check(evaluated(0.0))
    assert "too short (15 batches, loss 2.31). Raise warm_start.batches and warm_start.episodes" in message
    for record in (evaluated(0.01), evaluated(0.0, iteration=5), evaluated(0.0, episodes=8)):
        assert alarms.check(record) == []
    assert "[warm_start]" in Alarms().check(evaluated(0.0))[0]


def test_the_first_iteration_without_a_success_names_the_warm_start():
    failed = {"success": 0.0, "dead_groups": 10, "algorithm": {"optimizer_steps": 0}}
    run = Run()
    run.alarms.check({"kind": "warm_start", "iteration": 0, "step": 15, "loss": 2.314})
    (message,) = run.check(**failed)
    assert "The warm start was too short (15 batches, loss 2.31). Raise warm_start.batches" in message
    later = Run()
    later.check(10)
    assert not any("warm_start" in text for text in later.check(3, **failed))
