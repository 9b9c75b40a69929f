"""The order in which the turns of an iteration are updated."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from seeupo.utils.option_checks import check_choice

Order = Literal["reverse", "natural", "random"]


def turn_order(num_turns: int, order: Order = "reverse", *, generator: torch.Generator | None = None) -> list[int]:
    """Return turns 0 ... num_turns-1 in update order: "reverse" of execution, "natural", or "random"."""
    check_choice("order", order, get_args(Order))
    if order == "reverse":
        return list(reversed(range(num_turns)))
    if order == "natural":
        return list(range(num_turns))
    if generator is None:
        raise ValueError("order = 'random': needs a generator, so that a run can be repeated")
    return [int(turn) for turn in torch.randperm(num_turns, generator=generator)]
