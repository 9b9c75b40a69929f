"""Log-probs of G actions after one prompt, forward and backward, tree-packed or with padded rows."""

from __future__ import annotations

import sys
from typing import Any

import torch
from measure import CLOCKS, serve, timed

from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs, tree_logprobs
from seeupo.models.packing.tree import pack_batches
from seeupo.types import Turn

model = load_policy(sys.argv[1]).model


def answer(message: dict[str, Any]) -> dict[str, Any]:
    prompt, actions = tuple(message["prompt"]), message["actions"]
    turns = [Turn(str(n), 0, prompt, tuple(action)) for n, action in enumerate(actions)]
    weights = {str(n): weight for n, weight in enumerate(message["weights"])}

    def step() -> None:
        model.zero_grad(set_to_none=True)
        if message["way"] == "tree":
            for batch in pack_batches(turns, row_tokens=4096, batch_tokens=4096):
                batch_logprobs = tree_logprobs(model, batch)
                _backward(batch_logprobs.logprobs, [weights[turns[member].trajectory] for member in batch.members])
        else:
            for start in range(0, len(turns), message["rows"]):
                part = turns[start : start + message["rows"]]
                _backward(padded_logprobs(model, part).logprobs, [weights[turn.trajectory] for turn in part])

    result: dict[str, Any] = timed(step, message["clock"]) | {
        "gflops_of_matrix_products": matrix_rate(message["clock"])
    }
    if "gradient" in message:
        torch.save([parameter.grad for parameter in model.parameters()], message["gradient"])
    return result


def matrix_rate(clock: str) -> float:
    """Return the rate of float32 matrix products: the best of five."""
    matrix, best = torch.randn(2048, 2048), float("inf")
    for _ in range(5):
        started = CLOCKS[clock]()
        matrix @ matrix
        best = min(best, CLOCKS[clock]() - started)
    return 2 * 2048**3 / best / 1e9


def _backward(logprobs_NL: torch.Tensor, weights: list[float]) -> None:
    (torch.tensor(weights)[:, None] * logprobs_NL).sum().backward()


serve(answer)
