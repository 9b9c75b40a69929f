import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seeupo.core.carry import CarriedAdvantage


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_m_starts_as_the_advantage_and_is_multiplied_by_ratios():
    carried = CarriedAdvantage(vector(1.0, -2.0, 3.0))
    carried.absorb(torch.tensor([2, 0]), vector(math.log(2), math.log(0.5)))
    carried.absorb(torch.tensor([0]), vector(math.log(10)))
    torch.testing.assert_close(carried.weights(torch.tensor([0, 1, 2])), vector(5.0, -2.0, 6.0))


def test_the_callers_advantages_are_not_modified():
    advantages = vector(1.0, 2.0)
    CarriedAdvantage(advantages).absorb(torch.tensor([0]), vector(1.0))
    assert advantages.tolist() == [1.0, 2.0]


def test_an_impossible_action_sets_m_to_zero():
    carried = CarriedAdvantage(vector(1.0))
    carried.absorb(torch.tensor([0]), vector(-math.inf))
    assert carried.weights(torch.tensor([0])).tolist() == [0.0]


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(first, second):
    log_ratio = torch.linspace(-1, 1, 6, dtype=torch.float64)
    results = []
    for order in (first, second):
        carried = CarriedAdvantage(torch.arange(6, dtype=torch.float64))
        carried.absorb(torch.tensor(order), log_ratio[order])
        results.append(carried.weights(torch.arange(6)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("trajectories", "log_ratio", "message"),
    [
        (torch.tensor([0, 0]), vector(1.0, 1.0), "contains an index twice"),
        (torch.tensor([0, 1]), vector(1.0), r"log_ratio has shape \(1,\)"),
        (torch.tensor([0]), vector(math.nan), "log_ratio contains nan"),
    ],
)
def test_absorb_rejects_invalid_arguments_and_changes_nothing(trajectories, log_ratio, message):
    carried = CarriedAdvantage(vector(1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match=message):
        carried.absorb(trajectories, log_ratio)
    assert carried.weights(torch.arange(3)).tolist() == [1.0, 2.0, 3.0]


def test_zero_stays_zero_and_overflow_is_an_error():
    carried = CarriedAdvantage(vector(0.0, 1.0))
    carried.absorb(torch.tensor([0]), vector(2000.0))
    assert carried.weights(torch.tensor([0])).tolist() == [0.0]
    with pytest.raises(ValueError, match=r"M overflowed: a turn's log-ratio reached 2e\+03"):
        carried.absorb(torch.tensor([1]), vector(2000.0))
    assert carried.weights(torch.tensor([1])).tolist() == [1.0]


def test_non_finite_advantages_are_rejected():
    with pytest.raises(ValueError, match=r"advantages\[1\] = inf"):
        CarriedAdvantage(vector(0.0, math.inf))
