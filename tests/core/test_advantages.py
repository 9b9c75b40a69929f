import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seeupo.core.advantages import gae, group_advantages

F64 = torch.float64


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


# Two groups by hand: rewards 1, 0, 0 (mean 1/3) and 4, 2 (mean 3).
REWARDS, GROUPS = tensor(1, 0, 0, 4, 2), torch.tensor([7, 7, 7, 3, 3])
CENTERED = tensor(2 / 3, -1 / 3, -1 / 3, 1, -1)


def test_without_normalization_the_group_mean_is_subtracted():
    torch.testing.assert_close(group_advantages(REWARDS, GROUPS, normalize="none"), CENTERED)


def test_group_normalization_divides_by_the_population_deviation_of_the_group():
    first = math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 3)
    expected = torch.cat([CENTERED[:3] / first, CENTERED[3:] / 1.0])
    torch.testing.assert_close(group_advantages(REWARDS, GROUPS, normalize="group"), expected)


def test_batch_normalization_divides_by_the_population_deviation_of_all_advantages():
    deviation = math.sqrt((6 / 9 + 2) / 5)
    torch.testing.assert_close(group_advantages(REWARDS, GROUPS), CENTERED / deviation)


def test_leave_one_out_compares_with_the_mean_of_the_others():
    advantages = group_advantages(REWARDS, GROUPS, normalize="none", baseline="leave_one_out")
    torch.testing.assert_close(advantages, tensor(1 - 0, 0 - 0.5, 0 - 0.5, 4 - 2, 2 - 4))


def test_weights_stand_for_repeated_rows():
    repeated = group_advantages(tensor(1, 1, 0, 5, 3, 3, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    weighted = group_advantages(tensor(1, 0, 5, 3), torch.tensor([0, 0, 1, 1]), weights=tensor(2, 1, 1, 3))
    torch.testing.assert_close(weighted, repeated[[0, 2, 3, 4]])


def test_weights_are_relative_to_their_sum():
    weights = tensor(0.1, 0.2, 0.2, 0.3, 0.2)
    small = group_advantages(REWARDS, GROUPS, weights=weights)
    torch.testing.assert_close(small, group_advantages(REWARDS, GROUPS, weights=1000 * weights))


@pytest.mark.parametrize("normalize", ["none", "group", "batch"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_equal_rewards_give_exactly_zero(normalize, baseline):
    # 0.1 has no exact binary form: the mean of three of them is not 0.1.
    rewards = tensor(0.1, 0.1, 0.1, 1.0, 0.0, 2.0)
    advantages = group_advantages(rewards, torch.tensor([0, 0, 0, 1, 1, 1]), normalize=normalize, baseline=baseline)
    assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert (advantages[3:] != 0).any()


def test_a_deviation_of_rounding_size_gives_zero():
    rewards = tensor(1.0, 1.0 + 1e-12, 1.0 - 1e-12)
    assert group_advantages(rewards, torch.zeros(3, dtype=torch.long), normalize="group").tolist() == [0.0] * 3
    assert group_advantages(rewards, torch.zeros(3, dtype=torch.long), normalize="batch").tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_rewards_are_centered_in_high_precision(dtype):
    rewards = torch.tensor([0.0, 1.0] * 300, dtype=dtype)
    advantages = group_advantages(rewards, torch.zeros(600, dtype=torch.long), normalize="none")
    assert advantages.dtype == dtype
    assert advantages.tolist() == [-0.5, 0.5] * 300


rewards_and_groups = st.lists(
    st.tuples(st.floats(-100, 100, allow_nan=False), st.integers(0, 3)), min_size=1, max_size=20
)


@given(rewards_and_groups, st.sampled_from(["none", "group", "batch"]), st.randoms(use_true_random=False))
def test_permuting_rows_permutes_advantages(rows, normalize, random):
    rewards, groups = (torch.tensor(column) for column in zip(*rows, strict=True))
    rewards = rewards.double()
    order = list(range(len(rows)))
    random.shuffle(order)
    straight = group_advantages(rewards, groups, normalize=normalize)
    permuted = group_advantages(rewards[order], groups[order], normalize=normalize)
    torch.testing.assert_close(permuted, straight[order], atol=1e-9, rtol=1e-9)


@given(rewards_and_groups, st.sampled_from(["none", "group", "batch"]))
def test_the_mean_over_the_batch_is_zero(rows, normalize):
    rewards, groups = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert abs(float(group_advantages(rewards.double(), groups, normalize=normalize).sum())) < 1e-7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalize": "std"}, "normalize = 'std': expected one of 'none', 'group', 'batch'"),
        ({"baseline": "median"}, "baseline = 'median'"),
        ({"rewards": tensor(1, math.nan, 0, 0, 0)}, r"rewards\[1\] = nan"),
        ({"rewards": tensor(1, 0, math.inf, 0, 0)}, r"rewards\[2\] = inf"),
        ({"groups": torch.tensor([0, 1])}, r"groups has shape \(2,\)"),
        ({"weights": tensor(1, 1, 1, 1)}, r"weights has shape \(4,\)"),
        ({"weights": tensor(1, 1, 1, 1, 1), "baseline": "leave_one_out"}, "weights cannot be combined"),
        ({"groups": torch.tensor([0, 0, 0, 0, 5]), "baseline": "leave_one_out"}, "group 5 has one member"),
    ],
)
def test_group_advantages_rejects_invalid_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(**{"rewards": REWARDS, "groups": GROUPS} | change)


def test_gae_by_hand():
    # Rewards 1 and 2, values 10 and 20, gamma 0.5, lambda 0.5:
    # delta_2 = 2 - 20 = -18; delta_1 = 1 + 0.5 * 20 - 10 = 1; A_1 = 1 + 0.25 * -18 = -3.5.
    advantages, returns = gae(
        tensor(1, 2)[None], tensor(10, 20)[None], torch.ones(1, 2, dtype=torch.bool), gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantages, tensor(-3.5, -18)[None])
    torch.testing.assert_close(returns, tensor(6.5, 2)[None])


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 1000))
def test_gae_ignores_positions_outside_the_mask(mask, seed):
    generator = torch.Generator().manual_seed(seed)
    live = torch.tensor(mask)
    rewards = torch.randn(1, len(mask), generator=generator, dtype=F64)
    values = torch.randn(1, len(mask), generator=generator, dtype=F64)
    noise = torch.where(live, 0.0, math.nan)
    advantages, returns = gae(rewards + noise, values + noise, live[None], gamma=0.9, lam=0.8)
    dense = torch.ones(1, int(live.sum()), dtype=torch.bool)
    expected, _ = gae(rewards[:, live], values[:, live], dense, gamma=0.9, lam=0.8)
    torch.testing.assert_close(advantages[:, live], expected)
    assert (advantages[:, ~live] == 0).all()
    assert (returns[:, ~live] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": torch.tensor([[0.0, math.nan]], dtype=F64)}, r"rewards\[0, 1\] = nan"),
        ({"values": torch.tensor([[math.inf, 0.0]], dtype=F64)}, r"values\[0, 0\] = inf"),
        ({"mask": torch.ones(2, 2, dtype=torch.bool)}, r"mask has shape \(2, 2\)"),
        ({"values": torch.ones(2, 2, dtype=F64)}, r"values has shape \(2, 2\)"),
    ],
)
def test_gae_rejects_invalid_arguments(change, message):
    arguments = {
        "rewards": torch.ones(1, 2, dtype=F64),
        "values": torch.ones(1, 2, dtype=F64),
        "mask": torch.ones(1, 2, dtype=torch.bool),
        "gamma": 1.0,
        "lam": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        gae(**arguments | change)
