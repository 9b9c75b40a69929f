"""The match: numbers of mini-batches, steps per turn and epochs from costs."""

import pytest

from comparison.small_study import made_result
from seeupo.comparison.matching import Cost, known_cost, measured_cost, unit_of
from seeupo.config.algorithms import AlgorithmSettings


def settings(name, **options):
    return AlgorithmSettings(name=name, options=options)


def test_each_algorithm_has_a_unit():
    assert [unit_of(settings(name), "optimizer_steps") for name in ("seeupo", "grpo", "ppo")] == [
        "steps_per_turn",
        "minibatches",
        "minibatches",
    ]
    assert unit_of(settings("grpo"), "tokens") == unit_of(settings("seeupo"), "seconds") == "epochs"
    assert unit_of(settings("grpo"), "none") is None


def test_steps_of_turn_by_turn_updates_must_be_measured():
    assert known_cost(settings("grpo", epochs=2), "optimizer_steps") == Cost(0.0, 2.0)
    assert known_cost(settings("seeupo"), "optimizer_steps") is None
    assert known_cost(settings("grpo"), "tokens") is None


def test_nearest_number_of_units():
    steps = Cost(0.0, 1.0)
    assert steps.nearest(3.5, fractional=True) == 3.5
    assert isinstance(steps.nearest(3.99, fractional=True), int)
    assert steps.nearest(3.6, fractional=False) == 4
    assert steps.nearest(0.2, fractional=True) == 1
    assert Cost(5.0, 2.0).nearest(9.2, fractional=False) == 2
    assert Cost(5.0, 0.0).nearest(9.2, fractional=False) == 1


def test_tokens_and_seconds_grow_from_a_fixed_amount():
    one, two = made_result([0.5] * 10, tokens=1000), made_result([0.5] * 10, tokens=1400)
    cost = measured_cost("tokens", 110.0, (one, two))
    assert (cost.fixed, cost.per_unit) == pytest.approx((70.0, 40.0))
    assert cost.at(1) == pytest.approx(110.0)
    assert measured_cost("optimizer_steps", 6.5, None).at(2) == 13.0
