import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seeupo.core.ratios import clip_binds, clipped_objective, k3, length_mask, masked_mean, sequence_log_ratio

F64 = torch.float64
numbers = st.floats(-3, 3, allow_nan=False)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_length_mask():
    assert length_mask(torch.tensor([2, 0, 1])).tolist() == [[True, True], [False, False], [True, False]]
    assert length_mask(torch.tensor([0, 0])).shape == (2, 0)


def test_log_ratio_is_the_mean_or_the_sum_over_the_action():
    new = torch.tensor([[-1.0, -2.0, 9.0], [-1.0, -1.0, -1.0]], dtype=F64)
    old = torch.tensor([[-2.0, -2.5, 7.0], [-1.5, -1.0, -2.0]], dtype=F64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    torch.testing.assert_close(sequence_log_ratio(new, old, mask), vector(0.75, 0.5))
    torch.testing.assert_close(sequence_log_ratio(new, old, mask, length_normalize=False), vector(1.5, 1.5))


@pytest.mark.parametrize("length_normalize", [True, False])
def test_an_action_without_tokens_has_ratio_one(length_normalize):
    noise = torch.full((2, 3), math.nan, dtype=F64)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert sequence_log_ratio(noise, noise, mask, length_normalize=length_normalize).tolist() == [0.0, 0.0]
    assert masked_mean(noise, mask).tolist() == [0.0, 0.0]


@given(st.integers(0, 4), st.booleans(), st.integers(0, 1000))
def test_padding_changes_neither_value_nor_gradient(padding, length_normalize, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (6,), generator=generator)
    mask = length_mask(lengths)
    new, old = (torch.randn(mask.shape, generator=generator, dtype=F64) for _ in range(2))

    def value_and_gradient(new, old, mask):
        new = new.clone().requires_grad_()
        value = sequence_log_ratio(new, old, mask, length_normalize=length_normalize)
        value.exp().sum().backward()
        return value.detach(), new.grad

    def padded(tensor):
        noise = torch.full((len(tensor), padding), math.nan, dtype=F64)
        return torch.cat([torch.where(mask, tensor, math.nan), noise], 1)

    wide_mask = torch.cat([mask, torch.zeros(len(mask), padding, dtype=torch.bool)], 1)
    value, gradient = value_and_gradient(new, old, mask)
    wide_value, wide_gradient = value_and_gradient(padded(new), padded(old), wide_mask)
    torch.testing.assert_close(wide_value, value, rtol=0, atol=0)
    torch.testing.assert_close(wide_gradient[wide_mask], gradient[mask], rtol=0, atol=0)
    assert (wide_gradient[~wide_mask] == 0).all()


@given(numbers, numbers, st.floats(0, 0.9), st.floats(0, 3))
def test_clipped_objective_is_the_minimum_in_the_paper(log_ratio, weight, low, high):
    ratio = math.exp(log_ratio)
    expected = min(ratio * weight, min(max(ratio, 1 - low), 1 + high) * weight)
    objective_values = clipped_objective(vector(log_ratio), vector(weight), clip=(low, high))
    assert float(objective_values) == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_without_clip_the_objective_is_the_product():
    torch.testing.assert_close(clipped_objective(vector(1.0), vector(-2.0), clip=None), vector(-2 * math.e))


@pytest.mark.parametrize(
    ("log_ratio", "weight", "gradient"),
    [
        (0.0, 2.0, 2.0),  # inside: d(r w)/d log r = r w
        (0.5, 2.0, 0.0),  # above the clip range, positive weight: clipped
        (0.5, -2.0, -2.0 * math.exp(0.5)),  # above the clip range, negative weight: not clipped
        (-0.5, -2.0, 0.0),
        (-0.5, 2.0, 2.0 * math.exp(-0.5)),
        (2000.0, 1.0, 0.0),  # the plain form gives nan here: 0 * inf
        (2000.0, 0.0, 0.0),
        (-math.inf, 1.0, 0.0),
    ],
)
def test_gradient_of_the_clipped_objective(log_ratio, weight, gradient):
    x = vector(log_ratio).requires_grad_()
    clipped_objective(x, vector(weight)).sum().backward()
    assert float(x.grad) == pytest.approx(gradient)
    clipped = bool(clip_binds(x.detach(), vector(weight), clip=(0.2, 0.2)))
    assert clipped == (gradient == 0 and weight != 0 and not math.isinf(log_ratio))


def test_no_clip_never_binds():
    assert not clip_binds(vector(9.0, -9.0), vector(1.0, -1.0), clip=None).any()


def test_wrong_shapes_are_rejected():
    good, mask = torch.zeros(2, 3, dtype=F64), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"old has shape \(2, 4\): expected \(2, 3\)"):
        sequence_log_ratio(good, torch.zeros(2, 4, dtype=F64), mask)
    with pytest.raises(ValueError, match=r"weight has shape \(2,\)"):
        clip_binds(vector(0.0), vector(1.0, 2.0), clip=(0.2, 0.2))
    with pytest.raises(ValueError, match=r"reference has shape \(1,\)"):
        k3(vector(0.0, 0.0), vector(0.0))
    with pytest.raises(ValueError, match=r"weight has shape \(3,\)"):
        clipped_objective(vector(0.0), torch.zeros(3, dtype=F64))


def test_k3_is_unbiased_and_its_gradient_is_that_of_the_other_direction():
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=F64, requires_grad=True)
    reference = torch.tensor([0.1, 0.2, -0.5], dtype=F64).log_softmax(0)
    policy = logits.log_softmax(0)
    estimate = k3(policy, reference)
    assert (estimate >= 0).all()
    probs = policy.detach().exp()
    torch.testing.assert_close(probs @ estimate, (policy.exp() * (policy - reference)).sum())
    (gradient,) = torch.autograd.grad(probs @ estimate, logits, retain_graph=True)
    (other,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), logits)
    torch.testing.assert_close(gradient, other)
