import torch

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.optimizer import ClippedAdamW


def parameters():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64)) for name in "ab"}


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.randn(4, 3, generator=generator, dtype=torch.float64)


def test_fused_steps_equal_those_of_a_loop_over_the_parameters():
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.1, max_grad_norm=None)
    loop, ours = parameters(), parameters()
    plain, optimizer = (
        torch.optim.AdamW(loop.values(), lr=0.1, weight_decay=0.1, foreach=False),
        ClippedAdamW(ours, settings),
    )
    for seed in range(3):
        set_gradients(loop, seed)
        set_gradients(ours, seed)
        plain.step()
        optimizer.step(0, None, owner="the policy")
    assert optimizer.by_agent[None].param_groups[0]["fused"] is True
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, loop[name], rtol=0, atol=1e-12)


def test_moments_are_continued_under_other_settings():
    ours, others = parameters(), parameters()
    optimizer = ClippedAdamW(ours, OptimizerSettings(learning_rate=0.1))
    set_gradients(ours, 0)
    optimizer.step(0, None, owner="the policy")
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    continued = ClippedAdamW(others, OptimizerSettings(learning_rate=0.05, weight_decay=0.5))
    for name, tensor in continued.prepare(saved).items():
        tensor.copy_(saved[name])
    assert {name: tensor.tolist() for name, tensor in continued.tensors().items()} == {
        name: tensor.tolist() for name, tensor in saved.items()
    }
    assert [group["weight_decay"] for group in continued.by_agent[None].param_groups] == [0.5]
