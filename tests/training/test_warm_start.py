"""Demonstrations, and learning from them."""

import itertools

import pytest
import torch

from seeupo.config.schema import WarmStartSettings
from seeupo.errors import TrainingError
from seeupo.runs.trajectory_files import write_trajectories
from seeupo.training.setup import assemble
from seeupo.training.warm_start import Lessons, LogLikelihood, demonstrations_in, lessons_for, optimizer_of
from seeupo.types import Trajectory, Turn
from training.small_runs import small


def test_a_demonstration_is_what_the_policy_would_have_seen_and_said():
    recipe = small(warm_start={"noisy": 0.0, "episodes": 6})
    with assemble(recipe) as parts:
        lessons = lessons_for(recipe, parts, lambda done: None)
        decode = parts.runner.chat.decode
        for demonstration in lessons.demonstrations:
            first, last = demonstration[0], demonstration[-1]
            assert decode(last.action_ids).split()[0] == "done"
            assert decode(first.prompt_ids).split()[0] == "user"
            assert all(sample.action_ids[-1] == parts.policy.tokenizer.eos_token_id for sample in demonstration)
            for one, other in itertools.pairwise(demonstration):
                assert other.prompt_ids[: len(one.prompt_ids) + len(one.action_ids)] == one.prompt_ids + one.action_ids
            # What a policy samples for the same words is the same tokens: nothing is learned in a form it never meets.
            assert parts.runner.chat.response(decode(first.action_ids)) == first.action_ids


def test_the_same_recipe_gives_the_same_lessons_and_another_seed_others():
    def taught(seed):
        recipe = small(run={"seed": seed})
        with assemble(recipe) as parts:
            lessons = lessons_for(recipe, parts, lambda done: None)
            return lessons.batch(0), lessons.batch(7)

    assert taught(1) == taught(1)
    assert taught(1)[0] != taught(2)[0]


def test_every_demonstration_comes_once_in_a_pass():
    settings = WarmStartSettings(batch_episodes=3)
    demonstrations = [(Turn(f"d{number}", 0, (1,), (2,)),) for number in range(6)]
    lessons = Lessons(demonstrations, settings, seed=0)
    seen = [sample.trajectory for step in range(2) for sample in lessons.batch(step)]
    assert sorted(seen) == [f"d{number}" for number in range(6)]


def test_learning_makes_demonstrations_likely():
    recipe = small(warm_start={"batches": 60})
    with assemble(recipe) as parts:
        lessons = lessons_for(recipe, parts, lambda done: None)
        parts.engine.set_optimizer(optimizer_of(recipe.warm_start))
        losses = []
        for step in range(60):
            parts.engine.begin_iteration(step)
            losses.append(lessons.teach(parts.engine, step))
    assert losses[0] == pytest.approx(torch.tensor(float(len(parts.policy.tokenizer))).log().item(), rel=0.2)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_the_objective_counts_action_tokens_and_nothing_under_the_padding():
    samples = [Turn("a", 0, (1,), (2, 3)), Turn("b", 0, (1,), (2,))]
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]])
    assert LogLikelihood()(logprobs, None, samples).tolist() == [-3.0, -3.0]


def written(path, *rewards, token=5):
    trajectories = [
        Trajectory(f"t{n}", "g", "task", (Turn(f"t{n}", 0, (1, 2), (3, token)),), reward)
        for n, reward in enumerate(rewards)
    ]
    write_trajectories(path, trajectories, facts={})
    return path


def test_trajectories_of_a_user_are_chosen_by_reward(tmp_path):
    path = written(tmp_path / "mine.jsonl.gz", 0.0, 1.0, 0.5)
    for lowest, count in ((0.0, 3), (0.5, 2), (1.0, 1)):
        assert len(demonstrations_in(path, WarmStartSettings(min_reward=lowest), vocabulary=10)) == count


def test_trajectories_that_cannot_be_learned_from_are_refused(tmp_path):
    path = written(tmp_path / "mine.jsonl.gz", 0.0)
    with pytest.raises(TrainingError, match=r"none of the 1 trajectories .* lower warm_start.min_reward"):
        demonstrations_in(path, WarmStartSettings(min_reward=1.0), vocabulary=10)
    with pytest.raises(TrainingError, match=r"contains token 5 and the model knows 5; .* another tokenizer"):
        demonstrations_in(path, WarmStartSettings(), vocabulary=5)
    with pytest.raises(TrainingError, match=r"warm_start.file cannot be read: .*nowhere"):
        demonstrations_in(tmp_path / "nowhere.jsonl.gz", WarmStartSettings(), vocabulary=5)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(TrainingError, match=r"warm_start.file cannot be read: "):
        demonstrations_in(tmp_path / "text", WarmStartSettings(), vocabulary=5)
