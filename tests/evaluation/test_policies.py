import json
import random

import pytest

from envs.counting import CountingFactory
from rollout.worlds import EchoFactory
from seeupo.config.model_settings import TinyConfig
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EvaluationError
from seeupo.evaluation.policies import ModelPolicy, RandomPolicy, expert_policy, random_policy
from seeupo.models.loading import load_policy
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.runner import Runner
from seeupo.training.loop import KeptTrajectories
from seeupo.types import Message, SamplingParameters, StepResult, Tool


def by_key(results):
    return {result.key: result for result in results}


def test_expert_policy_runs_the_environments_expert():
    with EnvPool(CountingFactory()) as pool:
        found = by_key(expert_policy(pool, max_turns=10).run(group_attempts(pool.tasks("easy"), 2, seed=0)))
        assert len(found) == 10
        assert {result.score for result in found.values()} == {1.0}
        short = list(expert_policy(pool, max_turns=2).run(group_attempts(pool.tasks("easy")[4:], 1, seed=0)))
    assert [(result.score, result.stop, result.turns) for result in short] == [(0.0, "turn_limit", 2)]


def test_missing_expert_is_a_user_error():
    with (
        EnvPool(CountingFactory(help_wanted=False)) as pool,
        pytest.raises(EvaluationError, match="no expert for task easy-1"),
    ):
        list(expert_policy(pool, max_turns=10).run(group_attempts(pool.tasks("easy"), 1, seed=0)))


def test_infrastructure_failures_have_no_score():
    with EnvPool(CountingFactory(broken_task="easy-2")) as pool:
        found = by_key(expert_policy(pool, max_turns=10).run(group_attempts(pool.tasks("easy"), 1, seed=0)))
    assert [key for key, result in found.items() if result.score is None] == [("easy-2", 0)]
    assert "broken" in found["easy-2", 0].failure


def test_random_policy_depends_on_the_seed_only():
    with EnvPool("pocket") as pool:
        runs = [
            by_key(random_policy(pool, 4).run(group_attempts(pool.tasks("test")[:6], 2, seed=seed)))
            for seed in (0, 0, 1)
        ]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 12


def test_random_policy_calls_offered_tools_with_words_it_has_seen():
    tool = Tool("look", "Look.", {"type": "object", "properties": {"what": {"type": "string"}}})
    policy = RandomPolicy(random.Random(0))
    first = policy(StepResult((Message("user", "cat"),), tools=(tool,))).result()
    call = json.loads(first.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call["name"] == "look"
    assert call["arguments"]["what"] in ("done", "cat")
    assert "look" in policy(StepResult(())).result()  # the tools stay
    assert set(policy(StepResult((), tools=())).result().split()) <= {"done", "cat"}


def test_model_policy_counts_tokens_and_passes_trajectories_on():
    policy = load_policy("tiny", tiny=TinyConfig(width=32, layers=1, heads=2, context=256))
    kept = KeptTrajectories()
    with EnvPool(EchoFactory(breaks_at=("echo-1", 0))) as pool:
        runner = Runner(policy, pool, parameters=SamplingParameters(max_tokens=5), max_turns=3, training=False)
        attempts = group_attempts(pool.tasks("train")[:3], 2, seed=0)
        found = by_key(ModelPolicy(runner, kept).run(attempts))
    assert sorted(found) == sorted((attempt.task.id, attempt.index) for attempt in attempts)
    assert sorted(trajectory.id for trajectory in kept.trajectories) == sorted(attempt.id for attempt in attempts)
    for trajectory in kept.trajectories:
        task, _, index = trajectory.id.partition("#")
        result = found[task, int(index)]
        assert result.turns == len(trajectory.turns)
        assert result.action_tokens == sum(len(turn.action_ids) for turn in trajectory.turns)
        assert result.prompt_tokens == sum(len(turn.prompt_ids) for turn in trajectory.turns)
        assert result.truncated_responses == trajectory.truncated_responses
        assert (result.score is None) == (result.failure is not None) == (task == "echo-1")
