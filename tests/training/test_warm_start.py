"""Demonstrations, and learning from them."""

import gzip
import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from engines.examples import engine, trajectories
from seeupo.callbacks import Callback
from seeupo.config.model_settings import LoraSettings, TinySettings
from seeupo.config.schema import WarmStartSettings
from seeupo.errors import TrainingError
from seeupo.report.write import write_report
from seeupo.runs.trajectory_files import write_trajectories
from seeupo.training.run import train
from seeupo.training.setup import build
from seeupo.training.train_display import result_line
from seeupo.training.warm_start import (
    Demonstrations,
    LogLikelihood,
    load_demonstrations,
    read_demonstrations,
    warm_start_optimizer,
)
from seeupo.types import Trajectory, Turn
from training.small_runs import small


def test_a_demonstration_has_the_policys_prompts_and_tokens():
    recipe = small(warm_start={"noisy": 0.0, "episodes": 6})
    with build(recipe) as components:
        demonstrations = load_demonstrations(components)
        decode = components.runner.chat.decode
        for demonstration in demonstrations.demonstrations:
            first, last = demonstration[0], demonstration[-1]
            assert decode(last.action_ids).split()[0] == "done"
            assert decode(first.prompt_ids).split()[0] == "user"
            assert all(turn.action_ids[-1] == components.runner.chat.tokenizer.eos_token_id for turn in demonstration)
            for one, other in itertools.pairwise(demonstration):
                assert other.prompt_ids[: len(one.prompt_ids) + len(one.action_ids)] == one.prompt_ids + one.action_ids
            # The policy's own responses have the same token ids as the demonstrations for the same text.
            assert components.runner.chat.response(decode(first.action_ids)) == first.action_ids


def test_demonstrations_depend_on_the_seed():
    def batches(seed):
        recipe = small(run={"seed": seed})
        with build(recipe) as components:
            demonstrations = load_demonstrations(components)
            return demonstrations.batch(0), demonstrations.batch(7)

    assert batches(1) == batches(1)
    assert batches(1)[0] != batches(2)[0]


def test_every_demonstration_comes_once_per_pass():
    settings = WarmStartSettings(batch_episodes=3)
    demonstrations = [(Turn(f"d{number}", 0, (1,), (2,)),) for number in range(6)]
    batched = Demonstrations(demonstrations, settings, seed=0)
    seen = [turn.trajectory for step in range(2) for turn in batched.batch(step)]
    assert sorted(seen) == [f"d{number}" for number in range(6)]


def test_a_warm_start_trains_the_adapter_of_the_first_role_on_all_turns():
    """Demonstrations have no roles; `copy_first_adapter` then gives the other roles what was learned."""
    local = engine(lora=LoraSettings(rank=2, per_role=("planner", "worker")))
    demonstrations = [trajectory.turns for trajectory in trajectories()]
    batched = Demonstrations(demonstrations, WarmStartSettings(batch_episodes=4), seed=0, first_adapter="planner")
    before = {name: parameter.detach().clone() for name, parameter in local.policy.model.named_parameters()}
    batched.train_step(local, 0)
    moved = {
        name for name, parameter in local.policy.model.named_parameters() if not torch.equal(before[name], parameter)
    }
    assert moved
    assert all(".role_planner." in name for name in moved)
    local.copy_first_adapter()
    for name in moved:
        other = local.policy.model.get_parameter(name.replace("role_planner", "role_worker"))
        assert torch.equal(local.policy.model.get_parameter(name), other)


def test_training_makes_demonstrations_likely():
    recipe = small(warm_start={"batches": 60})
    with build(recipe) as components:
        demonstrations = load_demonstrations(components)
        components.engine.set_optimizer(warm_start_optimizer(recipe.warm_start))
        losses = []
        for step in range(60):
            components.engine.begin_iteration(step)
            losses.append(demonstrations.train_step(components.engine, step))
    assert losses[0] == pytest.approx(torch.tensor(float(len(components.runner.chat.tokenizer))).log().item(), rel=0.2)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_demonstrations_of_a_task_share_their_tokens_and_keep_loss_and_gradient(monkeypatch, dtype, tolerance):
    demonstrations = [trajectory.turns for trajectory in trajectories()]  # two tasks, four demonstrations of each
    batched = Demonstrations(demonstrations, WarmStartSettings(batch_episodes=len(demonstrations)), seed=0)

    def loss_and_gradient(packing):
        local = engine(packing=packing, dtype=dtype, batch_tokens=10_000, row_tokens=10_000)
        monkeypatch.setattr(local._optimizer, "step", lambda *_, **__: {})
        loss = batched.train_step(local, 0)
        return local, loss, torch.cat([p.grad.flatten() for p in local.policy.model.parameters()])

    packed, loss, gradient = loss_and_gradient("tree")
    _, padded_loss, padded_gradient = loss_and_gradient("padded")
    assert loss == pytest.approx(padded_loss, rel=tolerance)
    assert (gradient - padded_gradient).norm() <= tolerance * padded_gradient.norm()

    turns = batched.batch(0)
    sequences = [turn.prompt_ids + turn.action_ids for turn in turns]
    distinct = {sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert sum(batch.input_ids.numel() for batch, _ in packed._batches.iterate(turns)) == len(distinct)


def test_the_objective_ignores_padding():
    turns = [Turn("a", 0, (1,), (2, 3)), Turn("b", 0, (1,), (2,))]
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]])
    assert LogLikelihood()(logprobs, None, turns).tolist() == [-3.0, -3.0]


RUNNER = SimpleNamespace(context_length=4)


def written(path, *rewards, token=5):
    trajectories = [
        Trajectory(f"t{n}", "g", "task", (Turn(f"t{n}", 0, (1, 2), (3, token)),), reward)
        for n, reward in enumerate(rewards)
    ]
    write_trajectories(path, trajectories, header={})
    return path


def test_trajectories_of_a_file_are_selected_by_reward(tmp_path):
    path = written(tmp_path / "mine.jsonl.gz", 0.0, 1.0, 0.5)
    for lowest, count in ((0.0, 3), (0.5, 2), (1.0, 1)):
        assert len(list(read_demonstrations(path, WarmStartSettings(min_reward=lowest), RUNNER, 10))) == count


def test_unusable_trajectory_files_are_refused(tmp_path):
    path = written(tmp_path / "mine.jsonl.gz", 0.0)
    with pytest.raises(TrainingError, match=r"none of the 1 trajectories .* lower warm_start.min_reward"):
        list(read_demonstrations(path, WarmStartSettings(min_reward=1.0), RUNNER, 10))
    with pytest.raises(TrainingError, match=r"line 2: it contains token 5.*another tokenizer"):
        list(read_demonstrations(path, WarmStartSettings(min_reward=0.0), RUNNER, 5))
    with pytest.raises(TrainingError, match=r"line 2: a turn has 4 tokens; the model's context is 3"):
        list(read_demonstrations(path, WarmStartSettings(min_reward=0.0), SimpleNamespace(context_length=3), 10))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere", "warm_start.file: .*nowhere cannot be read: No such file"),
        ("text", r'warm_start.file: .*text, line 1: not JSON .*; expected \{"messages"'),
        ("damaged", "warm_start.file: .*damaged: line 2"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, problem):
    (tmp_path / "text").write_text("hello")
    header = json.dumps({"format": "seeupo-trajectories", "version": 3})
    (tmp_path / "damaged").write_bytes(gzip.compress(f"{header}\n{{}}\n".encode()))
    recipe = small(warm_start={"file": str(tmp_path / name)})
    with build(recipe) as components, pytest.raises(TrainingError, match=problem) as caught:
        load_demonstrations(components)
    assert "\n" not in str(caught.value)


class Progress(Callback):
    def __init__(self):
        self.done = []

    def on_progress(self, done, text=""):
        self.done.append(done)


def test_every_format_is_read_and_progress_is_reported(tmp_path):
    pairs = [{"prompt": "send ann 5", "completion": "done"}] * 3
    chats = [{"messages": [{"role": "user", "content": "send"}, {"role": "assistant", "content": "done"}]}] * 2
    (tmp_path / "pairs").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "chats").write_bytes(gzip.compress("\n".join(map(json.dumps, chats)).encode()))
    for path, count in ((tmp_path / "pairs", 3), (tmp_path / "chats", 2), (written(tmp_path / "own", 1.0), 1)):
        recipe, progress = small(warm_start={"file": str(path)}, model={"tiny": TinySettings(words=False)}), Progress()
        with build(recipe) as components:
            assert len(load_demonstrations(components, progress).demonstrations) == count
        assert progress.done == list(range(1, count + 1))


def test_a_warm_start_alone_gives_a_policy_that_another_run_continues(tmp_path):
    whole = train(small(), run_dir=tmp_path / "whole")
    alone = train(small(run={"iterations": 0}), run_dir=tmp_path / "alone")
    assert alone.summary["before"] == alone.summary["after"] == whole.summary["before"]
    assert write_report([alone.run_dir], tmp_path / "alone.html").sentences
    continued = train(
        small(model={"name": str(alone.policy)}, warm_start=None, evaluation={"before": False}),
        run_dir=tmp_path / "continued",
    )

    def first_iteration(run):
        records = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
        first = next(record for record in records if record["kind"] == "iteration")
        return [first[name] for name in ("reward_mean", "action_tokens", "prompt_tokens", "entropy")]

    assert first_iteration(continued) == pytest.approx(first_iteration(whole))  # loaded weights are aligned differently
    assert not (continued.run_dir / "evaluations" / "00000.json").exists()
    assert continued.summary["before"] is continued.summary["difference"] is None
    assert result_line(continued.summary).startswith("Inconclusive")


def test_repeated_demonstrations_are_found_by_their_tokens():
    settings = WarmStartSettings(batches=2, batch_episodes=3)
    actions = [(2,), (3,), (2,), (4,), (5,), (6,)]  # the first and the third are the same
    demonstrations = [(Turn(f"d{number}", 0, (1,), action),) for number, action in enumerate(actions)]
    assert Demonstrations(demonstrations, settings, seed=0).repeated() == [demonstrations[0]]
    twice = WarmStartSettings(batches=4, batch_episodes=3)
    assert Demonstrations(demonstrations, twice, seed=0).repeated() == [demonstrations[n] for n in (0, 1, 3, 4, 5)]


def test_a_warm_start_of_upper_layers_computes_the_others_once(tmp_path):
    def warm_started(trunk_gib):
        recipe = small(
            run={"iterations": 0},
            model={"trunk_gib": trunk_gib, "lora": LoraSettings(rank=2, layers=1), "dtype": "float64"},
            warm_start={"episodes": 4, "batches": 6, "batch_episodes": 2, "noisy": 0.0},
        )
        run = train(recipe, run_dir=tmp_path / str(trunk_gib)).run_dir
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return [record["loss"] for record in records if record["kind"] == "warm_start"]

    kept, in_full = warm_started(1.0), warm_started(0.0)
    assert len(kept) == 6
    assert kept == pytest.approx(in_full, rel=1e-10)
