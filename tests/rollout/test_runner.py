import math
import os
import signal

import pytest

from agents.worlds import DelayedPocket, EchoFactory
from envs.worlds import TOY, quick
from seeupo.agents.chat import chat_format
from seeupo.agents.template import Template
from seeupo.engines.local import LocalEngine
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.engines.samplers.local import LocalSampler
from seeupo.envs.pool.pool import EnvPool
from seeupo.models.loading import load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.rollout.runner import Runner, RunnerSettings, seed_of_turn
from seeupo.types import Attempt, Completion, CompletionEnd, SamplingParameters, Status, StopReason

TINY = TinyConfig(width=32, layers=2, heads=2, context=512)
POLICY = load_policy("tiny", tiny=TINY)
EXACT = load_policy("tiny", tiny=TINY, dtype="float64")


def attempts(pool, count, group=4):
    tasks = pool.tasks(pool.splits[0])
    return [Attempt(f"e{n:03}", f"g{n // group}", tasks[n // group % len(tasks)], seed=n) for n in range(count)]


def run(pool, chosen, *, policy=POLICY, sampler=None, template=None, max_tokens=8, **settings):
    parameters = SamplingParameters(max_tokens=max_tokens)
    runner = Runner(
        sampler or LocalSampler(policy),
        pool,
        chat_format(policy.tokenizer),
        template or Template(reasoning=False),
        RunnerSettings(parameters=parameters, **settings),
        context_length=policy.context_length,
    )
    found = {trajectory.id: trajectory for trajectory in runner.run(chosen)}
    assert sorted(found) == sorted(attempt.id for attempt in chosen)
    return runner, found


def sampled(found):
    return {
        name: [(sample.prompt_ids, sample.action_ids, sample.behavior_logprobs) for sample in trajectory.turns]
        for name, trajectory in found.items()
    }


def test_what_is_recorded_is_what_was_sampled():
    with EnvPool(EchoFactory()) as pool:
        _, found = run(pool, attempts(pool, 12), policy=EXACT)
    engine = LocalEngine(EXACT, OptimizerSettings())
    for trajectory in found.values():
        assert trajectory.status is Status.OK
        assert trajectory.stop in (StopReason.GOAL, StopReason.ENVIRONMENT)
        assert [sample.index for sample in trajectory.turns] == list(range(len(trajectory.turns)))
        # The task, then response and answer of each turn.
        assert len(trajectory.texts) == 1 + 2 * len(trajectory.turns)
        for sample, row in zip(trajectory.turns, engine.logprobs(trajectory.turns), strict=True):
            assert list(sample.behavior_logprobs) == pytest.approx(row.tolist(), abs=1e-10)
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            grown = before.prompt_ids + before.action_ids
            assert after.prompt_ids[: len(grown)] == grown


def test_256_pocket_episodes_are_bit_identical_whatever_the_environments_timing():
    with EnvPool("pocket") as quick_pool, EnvPool(DelayedPocket(), workers=8) as slow_pool:
        first, again, delayed = (
            run(pool, attempts(pool, 256, group=8), max_turns=4, deterministic=True, concurrency=256)[1]
            for pool in (quick_pool, quick_pool, slow_pool)
        )
    assert sampled(first) == sampled(again)
    assert sampled(first) == sampled(delayed)


@pytest.mark.parametrize("deterministic", [True, False])
def test_in_float64_the_number_of_episodes_at_a_time_changes_no_token(deterministic):
    with EnvPool(EchoFactory()) as pool:
        alone, together = (
            run(pool, attempts(pool, 32), policy=EXACT, concurrency=concurrency, deterministic=deterministic)[1]
            for concurrency in (1, 32)
        )
    for name, trajectory in alone.items():
        for one, other in zip(trajectory.turns, together[name].samples, strict=True):
            assert (one.prompt_ids, one.action_ids) == (other.prompt_ids, other.action_ids)


def test_a_broken_world_fails_its_episode_only():
    with EnvPool(EchoFactory(breaks_at=("echo-1", 1))) as pool:
        _, found = run(pool, attempts(pool, 16))
    failed = {name for name, trajectory in found.items() if trajectory.status is Status.FAILED}
    assert failed == {"e004", "e005", "e006", "e007"}
    broken = found["e004"]
    assert broken.stop is StopReason.FAILURE
    assert math.isnan(broken.reward)
    assert "the world has ended" in broken.texts[-1]
    assert all(found[name].reward in (0.0, 1.0) for name in found if name not in failed)


class Scripted:
    """A sampler that says the same thing every time."""

    def __init__(self, ids, end=CompletionEnd.END_OF_TURN):
        self.ids, self.end, self.waiting = tuple(ids), end, []

    def submit(self, request):
        self.waiting.append(request.id)

    def poll(self):
        ready, self.waiting = self.waiting, []
        zeros = (0.0,) * len(self.ids)
        return [Completion(id=name, ids=self.ids, logprobs=zeros, end=self.end, version=0) for name in ready]


def test_every_way_to_stop_is_named():
    end = POLICY.tokenizer.eos_token_id
    words = POLICY.tokenizer.encode("hello")
    with EnvPool(EchoFactory(endless=True)) as pool:
        _, found = run(pool, attempts(pool, 4), sampler=Scripted([*words, end]), max_turns=5)
        assert {t.stop for t in found.values()} == {StopReason.TURN_LIMIT}
        assert all(len(t.turns) == 5 and t.reward == 1.0 for t in found.values())
        _, found = run(pool, attempts(pool, 4), sampler=Scripted([*words, end]), max_turns=500)
        assert {t.stop for t in found.values()} == {StopReason.CONTEXT_LIMIT}
        _, found = run(pool, attempts(pool, 4), sampler=Scripted([*words, end]), episode_seconds=0.0)
        assert {t.stop for t in found.values()} == {StopReason.FORCED}
    with EnvPool(EchoFactory()) as pool:
        _, found = run(pool, attempts(pool, 4), sampler=Scripted([*words, end]))
        assert {t.stop for t in found.values()} == {StopReason.GOAL}
        _, found = run(pool, attempts(pool, 4), sampler=Scripted([end]))
        assert {(t.stop, t.reward) for t in found.values()} == {(StopReason.ENVIRONMENT, 0.0)}


def test_a_model_that_never_stops_is_cut_and_parsed_for_what_it_is():
    words = POLICY.tokenizer.encode("hello")
    with EnvPool(EchoFactory()) as pool:
        _, found = run(pool, attempts(pool, 4), sampler=Scripted(words * 2, CompletionEnd.LENGTH))
    for trajectory in found.values():
        assert trajectory.timings["truncated_responses"] == len(trajectory.turns)
        assert all(sample.action_ids == tuple(words * 2) for sample in trajectory.turns)
        assert "10 letters at step 1" in trajectory.texts[2]


def test_invalid_utf8_is_an_ordinary_action():
    broken = POLICY.tokenizer.encode("é")[:1]
    with EnvPool(EchoFactory()) as pool:
        _, found = run(pool, attempts(pool, 4), sampler=Scripted(broken))
    assert all(trajectory.turns[0].action_ids == tuple(broken) for trajectory in found.values())
    assert all("1 letters" in trajectory.texts[2] for trajectory in found.values())


class SaysByEpisode(Scripted):
    """A sampler that says one thing in the first episode and another in the rest."""

    def __init__(self, first, rest, *, before_turn=lambda: None):
        super().__init__(())
        self.first, self.rest, self.before_turn = (
            POLICY.tokenizer.encode(first),
            POLICY.tokenizer.encode(rest),
            before_turn,
        )

    def poll(self):
        self.before_turn()
        ready, self.waiting = self.waiting, []
        for name in ready:
            self.ids = tuple(self.first if name == "e000" else self.rest)
            self.waiting = [name]
            yield from super().poll()


def test_a_step_that_hangs_ends_its_episode_with_the_official_score_and_the_rest_goes_on():
    with EnvPool(TOY, workers=2, limits=quick(), unsandboxed=True) as pool:
        _, found = run(pool, attempts(pool, 6), sampler=SaysByEpisode("hang", "say hello"), max_turns=2)
    hung = found["e000"]
    assert (hung.stop, hung.status, hung.reward) == (StopReason.ENVIRONMENT, Status.OK, 0.0)
    assert "it took longer than the time limit" in hung.texts[-1]
    assert {found[name].stop for name in found if name != "e000"} == {StopReason.TURN_LIMIT}


def test_workers_that_are_killed_between_turns_are_replaced_and_nobody_notices():
    with EnvPool(TOY, workers=2, unsandboxed=True) as pool:

        def kill_all():
            for pid in pool.worker_pids:
                os.kill(pid, signal.SIGKILL)

        sampler = SaysByEpisode("add 1", "say hello", before_turn=kill_all)
        _, found = run(pool, attempts(pool, 6), sampler=sampler, max_turns=3, deterministic=True)
    assert {trajectory.status for trajectory in found.values()} == {Status.OK}
    assert found["e000"].texts[1:6:2] == ("add 1", "add 1", "add 1")
    assert len(set(found["e000"].texts[2:7:2])) == 3  # it goes on counting where it was


def test_thoughts_do_not_act():
    ids = POLICY.tokenizer.encode("<think>five words</think>go")
    with EnvPool(EchoFactory()) as pool:
        _, found = run(pool, attempts(pool, 4), sampler=Scripted(ids), template=Template(), max_turns=2)
    assert all("2 letters at step 1" in trajectory.texts[2] for trajectory in found.values())


def test_an_episode_that_waits_too_long_is_named():
    with (
        EnvPool(EchoFactory(latency=0.2), workers=4) as pool,
        pytest.warns(UserWarning, match=r"episode e00\d .*waiting"),
    ):
        run(pool, attempts(pool, 4), sampler=Scripted([3]), stuck_seconds=0.01)


def test_every_turn_of_every_attempt_has_a_seed_of_its_own():
    seeds = {seed_of_turn(seed, name, turn) for seed in range(4) for name in ("a", "b") for turn in range(5)}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of_turn(1, "a", 2) == seed_of_turn(1, "a", 2)


def test_an_interrupted_run_gives_its_episodes_back():
    with EnvPool(EchoFactory(endless=True)) as pool:
        runner = Runner(
            LocalSampler(POLICY),
            pool,
            chat_format(POLICY.tokenizer),
            Template(reasoning=False),
            RunnerSettings(parameters=SamplingParameters(max_tokens=4), max_turns=2, concurrency=2),
            context_length=512,
        )
        for _ in runner.run(attempts(pool, 8)):
            break
        _, found = run(pool, attempts(pool, 4))
        assert len(found) == 4
    with pytest.raises(ValueError, match="max_turns is 0"):
        RunnerSettings(max_turns=0)
