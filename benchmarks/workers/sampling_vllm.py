"""Completions by vLLM on the CPU in float32, with a prefix cache that is emptied before each measurement."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from measure import serve

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process: a script without a main guard cannot be spawned
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"

from vllm import LLM, SamplingParams

llm = LLM(
    sys.argv[1],
    dtype="float32",
    enable_prefix_caching=True,
    max_model_len=2048,
    max_num_seqs=128,
    disable_log_stats=True,
)


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Sample `new` tokens after each prompt, or up to the end of the turn if `ends` is true."""
    if message["fresh"]:
        llm.reset_prefix_cache()
    new, ends = message["new"], message.get("ends", False)
    parameters = SamplingParams(
        temperature=1.0, max_tokens=new, min_tokens=0 if ends else new, ignore_eos=not ends, logprobs=0
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in message["prompts"]]
    clock = time.process_time if message["clock"] == "cpu" else time.perf_counter
    started = clock()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    return {"seconds": clock() - started, "ids": [list(output.outputs[0].token_ids) for output in outputs]}


serve(answer)
