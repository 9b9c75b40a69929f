import os
import signal
import threading
import warnings
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from envs.worlds import TOY, quick, worker_pids
from rollout.worlds import DelayedPocket, EchoFactory
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.envs.pool.pool import EnvPool
from seeupo.models.loading import load_policy
from seeupo.rollout.runner import Runner
from seeupo.types import (
    Attempt,
    Completion,
    CompletionEnd,
    FailureKind,
    Message,
    SamplingParameters,
    StepResult,
    StopReason,
    Task,
)
from seeupo.utils.seeds import derive_seed

TINY = TinyConfig(width=32, layers=2, heads=2, context=512)
POLICY = load_policy("tiny", tiny=TINY)
EXACT = load_policy("tiny", tiny=TINY, dtype="float64")


def attempts(pool, count, group=4):
    tasks = pool.tasks(pool.splits[0])
    return [Attempt(f"e{n:03}", f"g{n // group}", tasks[n // group % len(tasks)], seed=n) for n in range(count)]


def run(pool, chosen, *, policy=POLICY, sampler=None, max_tokens=8, deterministic=False, **settings):
    """Run attempts and return their trajectories by id."""
    parameters = SamplingParameters(max_tokens=max_tokens)
    runner = Runner(policy, pool, sampler, parameters=parameters, deterministic=deterministic, **settings)
    found = {trajectory.id: trajectory for trajectory in runner.run(chosen)}
    assert sorted(found) == sorted(attempt.id for attempt in chosen)
    return found


def sampled(found):
    return {
        name: [(turn.prompt_ids, turn.action_ids, turn.behavior_logprobs) for turn in trajectory.turns]
        for name, trajectory in found.items()
    }


def test_turns_record_the_sampled_tokens_and_log_probs():
    with EnvPool(EchoFactory()) as pool:
        found = run(pool, attempts(pool, 12), policy=EXACT)
    engine = LocalEngine(EXACT, OptimizerSettings())
    for trajectory in found.values():
        assert trajectory.failure is None
        assert trajectory.stop in (StopReason.GOAL, StopReason.ENVIRONMENT)
        assert [turn.index for turn in trajectory.turns] == list(range(len(trajectory.turns)))
        assert trajectory.opening == f"task {trajectory.task}"
        assert len(trajectory.turn_texts) == len(trajectory.turns)
        assert all("letters at step" in text.observation for text in trajectory.turn_texts)
        for turn, row in zip(trajectory.turns, engine.logprobs(trajectory.turns), strict=True):
            assert list(turn.behavior_logprobs) == pytest.approx(row.tolist(), abs=1e-10)
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            grown = before.prompt_ids + before.action_ids
            assert after.prompt_ids[: len(grown)] == grown


class Paying:
    """Pays 0.5 for the first step and names its second state."""

    splits = ("train",)

    def tasks(self, split):
        return [Task("a", "train")]

    def make(self):
        return Paying()

    def reset(self, task, *, seed):
        self.steps = 0
        return StepResult((Message("user", "start"),))

    def step(self, text):
        self.steps += 1
        state = "second" if self.steps == 1 else None
        return StepResult((Message("user", "on"),), reward=0.5 * (self.steps == 1), state_key=state)

    def score(self):
        return 0.25

    def close(self):
        pass

    def expert(self, task):
        return None


def test_turns_have_their_step_reward_and_the_state_they_act_on():
    with EnvPool(Paying()) as pool:
        assert not pool.separate_step_rewards()
        found = run(pool, [Attempt(name, "g", Task("a", "train"), seed=0) for name in "ab"], max_turns=3)
    for trajectory in found.values():
        assert [turn.reward for turn in trajectory.turns] == [0.5, 0.0, 0.0]
        assert trajectory.reward == trajectory.score == 0.25
        first, second, third = (turn.state_key for turn in trajectory.turns)
        assert second == "second"
        assert len({first, second, third, ""}) == 4
    assert found["a"].turns[0].state_key == found["b"].turns[0].state_key


def test_lockstep_is_bit_identical_regardless_of_the_environments_timing():
    with EnvPool("pocket") as quick_pool, EnvPool(DelayedPocket(), workers=8) as slow_pool:
        first, again, delayed = (
            run(pool, attempts(pool, 256, group=8), max_turns=4, deterministic=True, concurrency=256)
            for pool in (quick_pool, quick_pool, slow_pool)
        )
    assert sampled(first) == sampled(again)
    assert sampled(first) == sampled(delayed)


@pytest.mark.parametrize("deterministic", [True, False])
def test_concurrency_changes_no_token_in_float64(deterministic):
    with EnvPool(EchoFactory()) as pool:
        alone, together = (
            run(pool, attempts(pool, 32), policy=EXACT, concurrency=concurrency, deterministic=deterministic)
            for concurrency in (1, 32)
        )
    for name, trajectory in alone.items():
        for one, other in zip(trajectory.turns, together[name].turns, strict=True):
            assert (one.prompt_ids, one.action_ids) == (other.prompt_ids, other.action_ids)


def test_environment_error_fails_its_episode_only():
    with EnvPool(EchoFactory(breaks_at=("echo-1", 1))) as pool:
        found = run(pool, attempts(pool, 16))
    failed = {name for name, trajectory in found.items() if trajectory.failure is not None}
    assert failed == {"e004", "e005", "e006", "e007"}
    broken = found["e004"]
    assert broken.stop is StopReason.FAILURE
    assert broken.score is None
    assert broken.failure.kind is FailureKind.RAISED
    assert "the world has ended" in broken.failure.message
    assert all(found[name].score in (0.0, 1.0) for name in found if name not in failed)


class ScriptedSampler:
    """A sampler with the same completion for every request."""

    def __init__(self, ids, end=CompletionEnd.END_OF_TURN):
        self.ids, self.end, self.waiting = tuple(ids), end, []

    def submit(self, request):
        self.waiting.append(request.id)

    def poll(self):
        ready, self.waiting = self.waiting, []
        zeros = (0.0,) * len(self.ids)
        return [Completion(id=name, ids=self.ids, logprobs=zeros, end=self.end, version=0) for name in ready]


def test_trajectories_have_the_reason_for_stopping():
    end = POLICY.tokenizer.eos_token_id
    words = POLICY.tokenizer.encode("hello")
    with EnvPool(EchoFactory(endless=True)) as pool:
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler([*words, end]), max_turns=5)
        assert {t.stop for t in found.values()} == {StopReason.TURN_LIMIT}
        assert all(len(t.turns) == 5 and t.reward == 1.0 for t in found.values())
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler([*words, end]), max_turns=500)
        assert {t.stop for t in found.values()} == {StopReason.CONTEXT_LIMIT}
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler([*words, end]), episode_seconds=0.0)
        assert {t.stop for t in found.values()} == {StopReason.FORCED}
    with EnvPool(EchoFactory()) as pool:
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler([*words, end]))
        assert {t.stop for t in found.values()} == {StopReason.GOAL}
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler([end]))
        assert {(t.stop, t.reward) for t in found.values()} == {(StopReason.ENVIRONMENT, 0.0)}


def test_truncated_responses_are_counted_and_executed():
    words = POLICY.tokenizer.encode("hello")
    with EnvPool(EchoFactory()) as pool:
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler(words * 2, CompletionEnd.LENGTH))
    for trajectory in found.values():
        assert trajectory.truncated_responses == len(trajectory.turns)
        assert all(turn.action_ids == tuple(words * 2) for turn in trajectory.turns)
        assert "10 letters at step 1" in trajectory.turn_texts[0].observation


def test_invalid_utf8_is_a_valid_action():
    broken = POLICY.tokenizer.encode("é")[:1]
    with EnvPool(EchoFactory()) as pool:
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler(broken))
    assert all(trajectory.turns[0].action_ids == tuple(broken) for trajectory in found.values())
    assert all("1 letters" in trajectory.turn_texts[0].observation for trajectory in found.values())


class SamplerByEpisode(ScriptedSampler):
    """A sampler with one completion for the first episode and another for the rest."""

    def __init__(self, first, rest, *, before_turn=lambda: None):
        super().__init__(())
        self.first, self.rest = POLICY.tokenizer.encode(first), POLICY.tokenizer.encode(rest)
        self.before_turn = before_turn

    def poll(self):
        self.before_turn()
        ready, self.waiting = self.waiting, []
        for name in ready:
            self.ids = tuple(self.first if name == "e000" else self.rest)
            self.waiting = [name]
            yield from super().poll()


def test_step_that_hangs_ends_its_episode_with_the_official_score():
    with EnvPool(TOY, workers=2, limits=quick(), unsandboxed=True) as pool:
        found = run(pool, attempts(pool, 6), sampler=SamplerByEpisode("hang", "say hello"), max_turns=2)
    hung = found["e000"]
    assert (hung.stop, hung.failure, hung.score) == (StopReason.ENVIRONMENT, None, 0.0)
    assert "time limit" in hung.turn_texts[-1].observation
    assert {found[name].stop for name in found if name != "e000"} == {StopReason.TURN_LIMIT}


def test_killed_workers_are_replaced_without_failing_episodes():
    with EnvPool(TOY, workers=2, unsandboxed=True) as pool:

        def kill_all():
            for pid in worker_pids(pool):
                os.kill(pid, signal.SIGKILL)

        sampler = SamplerByEpisode("add 1", "say hello", before_turn=kill_all)
        found = run(pool, attempts(pool, 6), sampler=sampler, max_turns=3, deterministic=True)
    assert all(trajectory.failure is None for trajectory in found.values())
    texts = found["e000"].turn_texts
    assert [text.response for text in texts] == ["add 1"] * 3
    assert len({text.observation for text in texts}) == 3  # it continues to count


def test_thoughts_are_not_sent_to_the_environment():
    ids = POLICY.tokenizer.encode("<think>five words</think>go")
    with EnvPool(EchoFactory()) as pool:
        found = run(pool, attempts(pool, 4), sampler=ScriptedSampler(ids), reasoning=True, max_turns=2)
    assert all("2 letters at step 1" in trajectory.turn_texts[0].observation for trajectory in found.values())


class ImmediatePool:
    """Environments without workers: a call has returned before the next line runs."""

    def __init__(self, factory):
        self.factory = factory

    def start(self, task, seed):
        env = self.factory.make()

        def call(method, *args, **options):
            future = Future()
            future.set_result(method(*args, **options))
            return future

        return SimpleNamespace(
            reset=lambda: call(env.reset, task, seed=seed),
            step=lambda text: call(env.step, text),
            score=lambda: call(env.score),
            close=env.close,
        )


class SlowSampler(ScriptedSampler):
    """A scripted sampler that is two minutes late at each poll."""

    def __init__(self, ids, clock):
        super().__init__(ids)
        self.clock = clock

    def poll(self):
        ready = super().poll()
        # Half of the episodes are already with their environments while the sampler is busy with the others.
        self.waiting = [completion.id for completion in ready[1::2]]
        self.clock.now += 120
        return ready[::2]


def set_clock(monkeypatch, monotonic):
    monkeypatch.setattr("seeupo.rollout.runner.time", SimpleNamespace(monotonic=monotonic))


TWO = [Attempt(task.id, task.id, task, seed=0) for task in EchoFactory(endless=True).tasks("train")[:2]]


def test_episodes_do_not_wait_for_environments_that_have_returned_during_sampling(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    set_clock(monkeypatch, lambda: clock.now)
    found = run(ImmediatePool(EchoFactory(endless=True)), TWO, sampler=SlowSampler([3], clock), max_turns=3)
    assert clock.now >= 360
    assert all(trajectory.timings["environment_seconds"] == 0 for trajectory in found.values())
    assert all(trajectory.timings["sampling_seconds"] >= 360 for trajectory in found.values())


class WaitingFactory(EchoFactory):
    """Environments whose first observation waits until it is released."""

    def __init__(self, released):
        super().__init__()
        self.released = released

    def make(self):
        env = super().make()
        reset = env.reset
        env.reset = lambda task, seed: self.released.wait() and reset(task, seed=seed)
        return env


@pytest.mark.parametrize("deterministic", [False, True])
def test_episodes_that_wait_long_for_their_environment_are_named(monkeypatch, deterministic):
    released, messages = threading.Event(), []

    def release(message, *_, **__):
        messages.append(str(message))
        released.set()

    monkeypatch.setattr("seeupo.rollout.runner.STUCK_SECONDS", 0.01)
    with warnings.catch_warnings(), EnvPool(WaitingFactory(released)) as pool:
        warnings.simplefilter("always")
        warnings.showwarning = release
        finished = run(pool, attempts(pool, 2), deterministic=deterministic)
    assert len(finished) == 2
    assert "2 episodes waiting for the environment; the first, e000 of task echo-0" in messages[0]


class RecordingSampler(ScriptedSampler):
    """A scripted sampler that keeps all requests."""

    def __init__(self, ids):
        super().__init__(ids)
        self.requests = []

    def submit(self, request):
        self.requests.append(request)
        super().submit(request)


def test_every_turn_of_every_attempt_has_a_different_seed():
    sampler = RecordingSampler([3])
    with EnvPool(EchoFactory(endless=True)) as pool:
        run(pool, attempts(pool, 4), sampler=sampler, max_turns=3)
    assert len({request.seed for request in sampler.requests}) == 12
    for request in sampler.requests:
        attempt_seed = int(request.id[1:])
        assert request.seed == derive_seed(attempt_seed, request.id, request.agent, bits=63)
        assert request.episode == request.id


def test_interrupted_run_releases_its_episodes():
    with EnvPool(EchoFactory(endless=True)) as pool:
        runner = Runner(POLICY, pool, parameters=SamplingParameters(max_tokens=4), max_turns=2, concurrency=2)
        for _ in runner.run(attempts(pool, 8)):
            break
        found = run(pool, attempts(pool, 4))
        assert len(found) == 4
    with pytest.raises(ValueError, match="max_turns = 0"):
        Runner(POLICY, None, max_turns=0)
