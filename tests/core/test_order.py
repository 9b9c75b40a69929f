import pytest
import torch

from seeupo.core.order import turn_order


def test_reverse_and_natural_order():
    assert turn_order(3) == [2, 1, 0]
    assert turn_order(3, "natural") == [0, 1, 2]
    assert turn_order(0) == []


def test_random_order_is_a_permutation_and_can_be_repeated():
    drawn = [turn_order(5, "random", generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    again = [turn_order(5, "random", generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert drawn == again
    assert all(sorted(order) == list(range(5)) for order in drawn)
    assert len(set(map(tuple, drawn))) > 1


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="order = 'backwards': expected one of 'reverse', 'natural', 'random'"):
        turn_order(3, "backwards")
    with pytest.raises(ValueError, match="needs a generator"):
        turn_order(3, "random")
