import math
import pickle
from dataclasses import replace

import pytest
import torch

from algorithms.examples import F64
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.types import Turn

TURNS = [Turn("a", 1, (0,), (3, 4, 5)), Turn("b", 1, (0,), (6,)), Turn("c", 1, (0,), ())]


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


OBJECTIVE = SequenceObjective(
    old={("a", 1): row(-1, -2, -3), ("b", 1): row(-0.5), ("c", 1): row()},
    advantages={("a", 1): 2.0, ("b", 1): -1.0, ("c", 1): 5.0},
    multiplicities={"a": 1.0, "b": 3.0, "c": 1.0},
    reference={("a", 1): row(-1, -2, -2), ("b", 1): row(-0.7), ("c", 1): row()},
    kl_coef=0.1,
    entropy_coef=0.01,
)
NAN = math.nan
LOGPROBS = torch.tensor([[-1.1, -1.9, -2.7], [-0.6, NAN, NAN], [NAN, NAN, NAN]], dtype=F64)
ENTROPIES = torch.tensor([[1.0, 2.0, 3.0], [0.4, NAN, NAN], [NAN, NAN, NAN]], dtype=F64)


def test_values_by_hand():
    objective_values = OBJECTIVE(LOGPROBS, ENTROPIES, TURNS)

    def k3(new, reference):
        return math.exp(reference - new) - (reference - new) - 1

    kl_a = (k3(-1.1, -1.0) + k3(-1.9, -2.0) + k3(-2.7, -2.0)) / 3
    first = 2.0 * math.exp(0.3 / 3) - 0.1 * kl_a + 0.01 * 2.0
    second = 3.0 * (-1.0 * math.exp(-0.1) - 0.1 * k3(-0.6, -0.7) + 0.01 * 0.4)
    # An action without tokens has ratio 1, no KL and no entropy; it is a constant.
    assert objective_values.tolist() == pytest.approx([first, second, 5.0], rel=1e-12)


def test_padding_affects_no_gradient():
    logprobs, entropies = LOGPROBS.clone().requires_grad_(), ENTROPIES.clone().requires_grad_()
    OBJECTIVE(logprobs, entropies, TURNS).sum().backward()
    for gradient in (logprobs.grad, entropies.grad):
        assert torch.isfinite(gradient).all()
        assert (gradient[1, 1:] == 0).all()
        assert (gradient[2] == 0).all()
        assert (gradient[0] != 0).all()


def test_turns_may_be_split_and_permuted():
    whole = OBJECTIVE(LOGPROBS, ENTROPIES, TURNS)
    order = [2, 0, 1]
    permuted = OBJECTIVE(LOGPROBS[order], ENTROPIES[order], [TURNS[n] for n in order])
    torch.testing.assert_close(permuted, whole[order], rtol=0, atol=0)
    alone = OBJECTIVE(LOGPROBS[1:2, :1], ENTROPIES[1:2, :1], TURNS[1:2])
    torch.testing.assert_close(alone, whole[1:2], rtol=0, atol=0)


def test_float64_is_kept():
    # 0.1 in float32 and in float64 differ in the ninth digit.
    objective = replace(OBJECTIVE, advantages={("b", 1): 0.1}, kl_coef=0.0, entropy_coef=0.0)
    old = OBJECTIVE.old["b", 1][None]
    assert float(objective(old, None, TURNS[1:2])) == 3.0 * 0.1


def test_objectives_can_be_pickled():
    copy = pickle.loads(pickle.dumps(OBJECTIVE))
    torch.testing.assert_close(copy(LOGPROBS, ENTROPIES, TURNS), OBJECTIVE(LOGPROBS, ENTROPIES, TURNS))


def test_entropies_are_needed_only_if_used():
    assert OBJECTIVE.needs_entropy
    assert not replace(OBJECTIVE, entropy_coef=0.0).needs_entropy
    with pytest.raises(ValueError, match="must pass entropies"):
        OBJECTIVE(LOGPROBS, None, TURNS)
