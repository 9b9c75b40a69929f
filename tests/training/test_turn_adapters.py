"""A run with one adapter per turn: training, resuming, evaluation and export."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from runs.test_export_run import engine_logprobs, some_turns
from seeupo.algorithms import PPO, SeeUPO
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.config.loader import recipe_from_table
from seeupo.config.model_settings import LoraSettings
from seeupo.errors import ModelError, RunError, UserError
from seeupo.evaluation.evaluate import evaluate
from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.lora.turn_adapters import TurnAdapters, activate, turn_adapters
from seeupo.report.payload import report_chunks
from seeupo.runs.export import export
from seeupo.runs.reader import read_run
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.interrupts import Interrupted
from seeupo.training.run import resume, train
from seeupo.types import turns_of
from training.small_runs import small
from training.test_ahead import versions
from training.test_train import InterruptAt, metrics

LORA = LoraSettings(rank=2, alpha=16, per_turn=2)
RECIPE = small(
    run={"iterations": 2, "keep_checkpoints": 3},
    model={"lora": LORA},
    algorithm=SeeUPO(kl_coef=0.01, turns_per_agent=2, trust_region=TrustRegionSettings(kl=0.01)),
    optimizer={"learning_rate": 1e-2},
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return train(RECIPE, run_dir=tmp_path_factory.mktemp("runs") / "run").run_dir


def turn_logprobs(model, turns, use) -> torch.Tensor:
    """Log-probs of turns, each with its adapter, which `use` activates."""
    rows = []
    for turn in turns:
        use(min(turn.index // 2, 1))
        with torch.no_grad():
            rows.append(padded_logprobs(model.eval(), [turn]).logprobs[0])
    return torch.cat(rows)


def test_exported_adapters_have_the_log_probs_of_the_engine_in_peft(run_dir, tmp_path):
    exported = export(run_dir, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(exported.path / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, exported.path / "turn_1", "turn_1")
    model.load_adapter(exported.path / "turn_2", "turn_2")
    turns = some_turns(run_dir)
    assert {turn.index for turn in turns} > {0, 2}
    found = turn_logprobs(model.get_base_model(), turns, lambda number: model.set_adapter(f"turn_{number + 1}"))
    torch.testing.assert_close(found, engine_logprobs(run_dir, 2), rtol=0, atol=1e-5)
    card = (exported.path / "README.md").read_text()
    assert "a = min(ceil(t / 2), 2)" in card
    assert "for name in ['turn_2']:" in card
    modules = "--lora-modules turn_1=FOLDER/turn_1 turn_2=FOLDER/turn_2"
    assert f"vllm serve FOLDER/base --enable-lora --max-loras 2 --max-lora-rank 8 {modules}" in card
    assert not list(exported.path.rglob("state.safetensors"))
    with pytest.raises(RunError, match="one adapter per turn or role, which cannot be merged"):
        export(run_dir, tmp_path / "merged", merge=True)


def test_policy_folder_has_all_adapters(run_dir):
    for folder in (run_dir / "policy", run_dir / "checkpoints" / "00002"):
        model = load_policy(str(folder)).model
        assert turn_adapters(model) == TurnAdapters(2, turns_per_agent=2)
        found = turn_logprobs(model, some_turns(run_dir), lambda number, model=model: activate(model, number))
        torch.testing.assert_close(found, engine_logprobs(run_dir, 2), rtol=0, atol=1e-5)
    assert "one LoRA adapter per turn" in (run_dir / "policy" / "README.md").read_text()


def test_evaluation_samples_with_the_adapters(run_dir, tmp_path):
    """The final evaluation of the run, repeated from its policy folder, has the same scores."""
    evaluation = evaluate(run_dir, out=tmp_path / "result.json", tasks=4, attempts=2, k=2, seed=3)
    stored = read_run(run_dir).evaluations[-1].evaluation
    scores = [{key: each.score for key, each in found.results.items()} for found in (evaluation, stored)]
    assert len(scores[0]) == 8
    assert scores[0] == scores[1]


def test_resumed_run_is_the_same(run_dir, tmp_path):
    with pytest.raises(Interrupted):
        train(RECIPE, run_dir=tmp_path / "run", callback=InterruptAt(57))
    resume(tmp_path / "run")
    for name in ("turn_1", "turn_2"):
        files = [each / "policy" / name / "adapter_model.safetensors" for each in (run_dir, tmp_path / "run")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("backbone", ["own", "policy"])
def test_critic_with_turn_adapters_resumes_exactly(tmp_path, backbone):
    recipe = replace(RECIPE, algorithm=PPO(), critic=replace(RECIPE.critic, backbone=backbone))
    whole = train(recipe, run_dir=tmp_path / "whole").run_dir
    with pytest.raises(Interrupted):
        train(recipe, run_dir=tmp_path / "run", callback=InterruptAt(57))
    resume(tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(whole)
    last = Path("checkpoints") / "00002"
    for file in (last / "turn_2" / "adapter_model.safetensors", last / "state" / "state.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()


def test_sampling_ahead_uses_the_adapters_of_the_version_before(tmp_path):
    recipe = replace(RECIPE, run=replace(RECIPE.run, iterations=3), collect=replace(RECIPE.collect, lag=1))
    run_dir = train(recipe, run_dir=tmp_path / "run").run_dir
    assert [versions(run_dir, iteration) for iteration in (1, 2, 3)] == [{0}, {0}, {1}]
    turns = turns_of(read_trajectories(run_dir / "trajectories" / "00003.jsonl.gz"))[:24]
    sampled = torch.tensor([value for turn in turns for value in turn.behavior_logprobs])
    for iteration, bound in ((1, 1e-4), (2, None)):
        model = load_policy(str(run_dir / "checkpoints" / f"0000{iteration}")).model
        found = turn_logprobs(model, turns, lambda number, model=model: activate(model, number))
        gap = float((found - sampled).abs().max())
        assert gap < bound if bound is not None else gap > 1e-3


def test_report_of_a_run_with_turn_adapters(run_dir):
    overview, _ = report_chunks([run_dir], max_bytes=25_000_000)
    (run,) = overview["runs"]
    assert run["trajectories"]["kept"] == 48
    assert {"step_scale", "pool_kl", "expected_gain"} <= {each["key"] for each in run["turn_maps"]}


def test_warm_start_leaves_equal_adapters(run_dir):
    adapters = [run_dir / "checkpoints" / "00000" / f"turn_{n}" / "adapter_model.safetensors" for n in (1, 2)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_training_a_policy_with_turn_adapters_further_is_refused(run_dir, tmp_path):
    with pytest.raises(ModelError, match="one adapter per turn or role: expected a model or one adapter to train"):
        train(small(model={"name": str(run_dir / "policy")}), run_dir=tmp_path / "run")


def test_unsupported_settings_are_refused():
    with pytest.raises(UserError, match=r"rank = 600 with per_turn or per_role and .*: expected at most 512"):
        recipe_from_table({"model": {"lora": {"per_turn": 2, "rank": 600}}, "sampler": {"kind": "vllm", "count": 1}})
    with pytest.raises(UserError, match=r"turns_per_agent.*it is set by algorithm.turns_per_agent"):
        recipe_from_table({"model": {"lora": {"turns_per_agent": 2}}})


def test_run_directory_is_complete(run_dir):
    assert RunDirectory.open(run_dir).checkpoints().latest().iteration == 2
