"""The same as update_ours.py with the per-token log-probs of TRL's GRPOTrainer."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from measure import serve, timed
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
add_fused_lm_head(model, temperature=1.0)  # as the trainer does
# The attributes of a trainer that the method needs.
trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))

log_probs = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)  # without its profiler


def answer(message: dict[str, Any]) -> dict[str, Any]:
    actions = torch.tensor(message["actions"])
    prompt = torch.tensor(message["prompt"]).expand(len(actions), -1)
    input_ids = torch.cat([prompt, actions], 1)
    weights = torch.tensor(message["weights"])

    def step() -> None:
        model.zero_grad(set_to_none=True)
        for start in range(0, len(actions), message["rows"]):
            part = slice(start, start + message["rows"])
            logprobs, *_ = log_probs(
                trainer, model, input_ids[part], torch.ones_like(input_ids[part]), actions.shape[1]
            )
            (weights[part, None] * logprobs).sum().backward()

    result: dict[str, Any] = timed(step, message["clock"])
    if "gradient" in message:
        torch.save([parameter.grad for parameter in model.parameters()], message["gradient"])
    return result


serve(answer)
