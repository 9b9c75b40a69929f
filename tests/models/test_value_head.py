import pytest
import torch

from models.examples import random_turns, small_model, thought_stripped_trajectory
from seeupo.models.packing.batching import PaddedBatch, micro_batches
from seeupo.models.scope import ModelScope
from seeupo.models.value_head import Critic

TURNS = [*random_turns(1), *thought_stripped_trajectory()]


def critic(backbone: str, policy) -> Critic:
    made = Critic(policy, backbone)
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(3))
    torch.nn.init.constant_(made.head.bias, 0.5)
    return made


def by_hand(made: Critic, policy, turn) -> torch.Tensor:
    """Apply the head to the states of one turn, from the one that predicts its first token to its last."""
    states = (made.backbone or policy.base_model)(torch.tensor([turn.prompt_ids + turn.action_ids])).last_hidden_state[
        0
    ]
    return (states @ made.head.weight[0] + made.head.bias)[len(turn.prompt_ids) - 1 :]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("backbone", ["own", "policy"])
@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_values_equal_those_of_each_turn_alone(family, backbone, packing):
    policy = small_model(family)
    made = critic(backbone, policy)
    seen = []
    for batch in micro_batches(TURNS, packing, row_tokens=24, batch_tokens=48):
        before, end = made(batch, ModelScope(policy))
        for number, row, last in zip(batch.members, before, end, strict=True):
            expected, length = by_hand(made, policy, TURNS[number]), len(TURNS[number].action_ids)
            torch.testing.assert_close(torch.cat([row[:length], last[None]]), expected, rtol=0, atol=1e-10)
            assert not row[length:].any()
            seen.append(number)
    assert sorted(seen) == list(range(len(TURNS)))


def test_values_of_a_new_critic_are_zero():
    policy = small_model()
    before, end = Critic(policy, "own")(PaddedBatch([0], TURNS[:1]), ModelScope(policy))
    assert not before.any()
    assert not end.any()


def test_value_head_uses_the_policy_and_separate_backbone_starts_from_it():
    policy = small_model()
    shared, separate = Critic(policy, "policy"), Critic(policy, "own")
    assert {name for name, _ in shared.named_parameters()} == {"head.weight", "head.bias"}
    start = {name: weight.clone() for name, weight in policy.base_model.named_parameters()}
    assert {name for name, _ in separate.named_parameters()} == {
        "head.weight",
        "head.bias",
        *(f"backbone.{n}" for n in start),
    }
    with torch.no_grad():
        for weight in policy.parameters():
            weight.zero_()
    assert all(torch.equal(weight, start[name]) for name, weight in separate.backbone.named_parameters())


def test_value_head_gradient_stops_at_the_policy():
    policy = small_model()
    for backbone, reaches in [("policy", False), ("own", True)]:
        made = Critic(policy, backbone)
        torch.nn.init.ones_(made.head.weight)
        before, _ = made(PaddedBatch([0], TURNS[-1:]), ModelScope(policy))
        before.square().sum().backward()
        assert made.head.weight.grad is not None
        assert all(weight.grad is None for weight in policy.parameters())
        if reaches:
            assert all(weight.grad is not None for weight in made.backbone.parameters())
