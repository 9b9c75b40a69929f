"""Episodes of agent programs in which the policy's responses are chosen."""

import contextlib
import json
from dataclasses import replace

from rollout.tokenizers_like import tokenizer_like
from seeupo.config.model_settings import TinyConfig
from seeupo.models.loading import load_policy
from seeupo.rollout.chat import chat_format
from seeupo.rollout.gateway.gateway import Gateway
from seeupo.types import Attempt, Completion, CompletionEnd, SamplingParameters, Task

POLICY = replace(
    load_policy("tiny", tiny=TinyConfig(width=32, layers=1, heads=2, context=2**17)),
    tokenizer=tokenizer_like("qwen2.5"),
)
TASK = Task("a", "train")


def tool_call(name, **arguments):
    """Return the text with which the policy calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class ScriptedSampler:
    """Samples the texts of a script, one after another in each episode, in tokens that no tokenizer would give.

    A response may end with one of its request's stop texts; all others end with the end of the turn.
    """

    def __init__(self, *script):
        self.chat = chat_format(POLICY.tokenizer)
        self.script = script
        self.requests = []
        self._waiting = []

    def submit(self, request):
        self.requests.append(request)
        self._waiting.append(request)

    def cancel(self, ids):
        cancelled = set(ids)
        self._waiting = [request for request in self._waiting if request.id not in cancelled]

    def poll(self):
        waiting, self._waiting = self._waiting, []
        return [self._completion(request) for request in waiting]

    def _completion(self, request):
        text = self.script[min(request.agent, len(self.script) - 1)]
        ids = tuple(id_ for character in text for id_ in self.chat.encode(character))
        if text.endswith(request.parameters.stop or "\0"):
            end = CompletionEnd.STOP_STRING
        elif len(ids) < request.parameters.max_tokens:
            end = CompletionEnd.END_OF_TURN
            ids = (*ids, self.chat.tokenizer.eos_token_id)
        else:
            end = CompletionEnd.LENGTH
            ids = ids[: request.parameters.max_tokens]
        logprobs = tuple(-0.5 - number / 100 for number in range(len(ids)))
        return Completion(id=request.id, ids=ids, logprobs=logprobs, end=end, version=3)


@contextlib.contextmanager
def gateway(program, *script, sampler=None, max_tokens=2048, **settings):
    """Start a gateway whose policy follows a script."""
    sampler = sampler or ScriptedSampler(*script)
    settings = {"parameters": SamplingParameters(max_tokens=max_tokens), "episode_seconds": 300.0, **settings}
    with contextlib.closing(Gateway(POLICY, program, sampler, **settings)) as running:
        sampler.gateway = running
        yield running


def run(program, *script, tasks=(TASK,), **settings):
    """Run an episode of each task and return the trajectories by task."""
    attempts = [Attempt(task.id, "g", task, seed=0) for task in tasks]
    with gateway(program, *script, **settings) as running:
        return {trajectory.task: trajectory for trajectory in running.run(attempts)}


def one_path(trajectory):
    """Return, for each later turn, whether its prompt continues the tokens of the turn before it."""
    turns = trajectory.turns
    grown = [turn.prompt_ids + turn.action_ids for turn in turns[:-1]]
    return [turn.prompt_ids[: len(ids)] == ids for turn, ids in zip(turns[1:], grown, strict=True)]
