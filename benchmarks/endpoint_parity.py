"""Compare greedy episodes of a model in this process and behind vLLM's OpenAI-compatible server on the same tasks.

Print the share of tasks with the same score, and of identical prompts and responses.

    python benchmarks/endpoint_parity.py --model runs/smollm2-pocket-001/policy --tasks 100
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sampling_speed import VLLM
from side_by_side import machine, peer_environment, write_results

from seeupo.envs.pool.pool import EnvPool
from seeupo.evaluation.endpoint import Endpoint
from seeupo.evaluation.policies import endpoint_policy
from seeupo.models.catalog import fetch
from seeupo.models.loading import load_policy
from seeupo.rollout.chat import chat_format
from seeupo.rollout.runner import Runner
from seeupo.types import Attempt, Message, SamplingParameters, turns_of

OPTIONS = {"surface": "natural", "tools": "signatures", "distractors": False, "turns": [2, 3]}
MAX_TOKENS, MAX_TURNS, PORT = 48, 4, 18765


@contextmanager
def server(folder: str) -> Iterator[str]:
    python = peer_environment("vllm", VLLM)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--dtype", "float32",
               "--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(PORT),
               "--max-model-len", "2048", "--generation-config", "vllm"]  # fmt: skip
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            if process.poll() is not None:
                raise RuntimeError("the server exited during startup")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, kw_only=True)
class RecordingEndpoint(Endpoint):
    """An endpoint that records requests and responses."""

    recorded: list[tuple[tuple[Message, ...], str]] = field(default_factory=list)

    def complete(self, messages: Sequence[Message], *, seed: int) -> str:
        text = super().complete(messages, seed=seed)
        self.recorded.append((tuple(messages), text))
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--model", help="Model folder.  [default: SmolLM2-135M-Instruct]")
    options = parser.parse_args()
    folder = options.model or str(fetch("smollm2-135m", on_note=print))
    with EnvPool("pocket", options=OPTIONS) as pool:
        attempts = [Attempt(task.id, task.id, task, 0) for task in pool.tasks("test")[: options.tasks]]
        with server(folder) as url:
            endpoint = RecordingEndpoint(url=url, model="smollm2", temperature=0.0, max_tokens=MAX_TOKENS)
            with endpoint_policy(pool, endpoint, MAX_TURNS, reasoning=False, concurrency=8) as remote:
                there = {result.task: (result.score, result.turns) for result in remote.run(attempts)}
        policy = load_policy(folder)
        # The endpoint receives tool messages as user messages, so do the same here.
        chat = replace(chat_format(policy.tokenizer), tool_role=False)
        parameters = SamplingParameters(max_tokens=MAX_TOKENS, top_k=1)
        runner = Runner(policy, pool, parameters=parameters, max_turns=MAX_TURNS, concurrency=8, training=False)
        runner.chat = chat
        trajectories = list(runner.run(attempts))
    here = {trajectory.task: (trajectory.score, len(trajectory.turns)) for trajectory in trajectories}
    answers = {chat.opening(messages, ()): text for messages, text in endpoint.recorded}
    mine = {turn.prompt_ids: chat.decode(turn.action_ids) for turn in turns_of(trajectories)}
    same_prompts = sum(prompt in answers for prompt in mine) / len(mine)
    common = [prompt for prompt in mine if prompt in answers]
    same_answers = sum(mine[prompt] == answers[prompt] for prompt in common) / max(1, len(common))
    same_score = sum(here[task][0] == there[task][0] for task in here) / len(here)
    same_turns = sum(here[task] == there[task] for task in here) / len(here)
    results: dict[str, Any] = {
        "machine": machine(), "vllm": VLLM, "tasks": len(here), "same_score": same_score,
        "same_score_and_turns": same_turns, "same_prompts": same_prompts, "same_answers": same_answers,
        "solved_here": sum(score == 1 for score, _ in here.values()),
        "solved_behind_the_server": sum(score == 1 for score, _ in there.values()),
    }  # fmt: skip
    print(f"{len(here)} tasks: same score on {same_score:.0%}, same score and number of turns on {same_turns:.0%}")
    print(f"{same_prompts:.0%} of the prompts have the same tokens, and {same_answers:.0%} of their responses")
    write_results("endpoint_parity", results)


if __name__ == "__main__":
    main()
