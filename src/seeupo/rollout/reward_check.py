"""Call a reward function on an episode before training, so that its mistakes are reported at once."""

from __future__ import annotations

from seeupo.config.schema import CollectSettings
from seeupo.protocols import Rollouts, TrainableEngine
from seeupo.rollout.collector import RewardFunction, with_reward
from seeupo.types import Attempt, Completion, CompletionEnd, GenerationRequest, Task


class EmptyResponses:
    """A sampler whose responses are empty: they end at once."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> None:
        self.requests.append(request)

    def poll(self) -> list[Completion]:
        requests, self.requests = self.requests, []
        return [
            Completion(id=request.id, ids=(self.end,), logprobs=(0.0,), end=CompletionEnd.END_OF_TURN, version=0)
            for request in requests
        ]

    def sync(self, engine: TrainableEngine, version: int) -> None: ...

    def release(self) -> None: ...

    def draft_from(self, turns: object) -> None: ...

    def cancel(self, ids: object) -> None: ...


def check_reward(reward: RewardFunction, settings: CollectSettings, runner: Rollouts, task: Task) -> None:
    """Call a reward function on an episode; `TrainingError` if it fails. `runner` samples `EmptyResponses`."""
    for trajectory in runner.run([Attempt("an episode of empty responses", "check", task, task.seed)]):
        with_reward(trajectory, settings, reward)
