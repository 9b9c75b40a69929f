import copy

import torch

from seeupo.engines.optimizer import Optimizer, OptimizerSettings


def parameters():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64)) for name in "ab"}


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.randn(4, 3, generator=generator, dtype=torch.float64)


def test_a_state_that_another_implementation_of_adamw_saved_is_continued():
    """Checkpoints of earlier versions are from PyTorch's loop over the parameters."""
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.1, max_grad_norm=None)
    loop, ours = parameters(), parameters()
    plain = torch.optim.AdamW(loop.values(), lr=0.1, weight_decay=0.1, foreach=False)
    for seed in range(3):
        set_gradients(loop, seed)
        plain.step()
        if seed == 1:
            saved = {None: copy.deepcopy(plain.state_dict())}
            weights = {name: parameter.detach().clone() for name, parameter in loop.items()}
    for name, parameter in ours.items():
        parameter.data.copy_(weights[name])
    optimizer = Optimizer(ours, settings)
    optimizer.load_state(saved)
    set_gradients(ours, 2)
    optimizer.step(0, None, owner="the policy")
    assert optimizer.by_agent[None].param_groups[0]["fused"] is True
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, loop[name], rtol=0, atol=1e-12)
