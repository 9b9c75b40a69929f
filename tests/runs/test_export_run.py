"""`seeupo export`, from the command line and from Python: exported folders have the log-probs of the engine."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

import seeupo
from models.examples import SHAPE
from models.test_loading import saved
from seeupo.cli import main
from seeupo.config.loader import read_recipe
from seeupo.config.model_settings import LoraSettings
from seeupo.errors import CheckpointError, RunError
from seeupo.models.logprobs import padded_logprobs
from seeupo.runs import export as exporting
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.interrupts import Interrupted
from seeupo.training.run import train
from seeupo.training.setup import build
from training.small_runs import small
from training.test_train import InterruptAt

KINDS = ("full", "lora", "lora-folder")
SHORT = {"run": {"iterations": 2, "keep_checkpoints": 3}, "evaluation": {"every": 1}}
FILES = {"README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs: all weights, LoRA on `tiny`, and LoRA on a Qwen2 folder. Training moves the policies visibly."""
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    shape = {**SHAPE, "vocab_size": 300, "max_position_embeddings": 512}
    qwen = saved(folder / "qwen", Qwen2ForCausalLM(Qwen2Config(**shape)))
    lora, fast = LoraSettings(rank=2), {"learning_rate": 1e-2}
    return {
        "full": train(small(**SHORT, optimizer=fast), run_dir=folder / "full"),
        "lora": train(small(**SHORT, optimizer=fast, model={"lora": lora}), run_dir=folder / "lora"),
        "lora-folder": train(
            small(**SHORT, optimizer=fast, model={"lora": lora, "name": qwen}), run_dir=folder / "lora-folder"
        ),
    }


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def some_turns(run_dir):
    return [t for each in list(read_trajectories(run_dir / "trajectories" / "00002.jsonl.gz"))[:6] for t in each.turns]


def engine_logprobs(run_dir, iteration, turns_of=None):
    """Log-probs of the engine that is resumed from a checkpoint, on turns of its run or another."""
    with build(read_recipe(str(run_dir / "recipe.toml"))) as components:
        components.engine.load(run_dir / "checkpoints" / f"{iteration:05d}")
        return torch.cat(components.engine.logprobs(some_turns(turns_of or run_dir)))


def model_logprobs(model, run_dir):
    turns = some_turns(run_dir)
    with torch.no_grad():
        found = padded_logprobs(model.eval(), turns)
    return torch.cat([row[: len(turn.action_ids)] for row, turn in zip(found.logprobs, turns, strict=True)])


def load_exported(folder):
    """Load a folder as its model card says, without this library."""
    AutoTokenizer.from_pretrained(folder).apply_chat_template([{"role": "user", "content": "hello"}])
    if not (folder / "adapter_config.json").exists():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    name = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    base = folder / name if (folder / name).is_dir() else name
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).base_model.model


def serving_lines(card):
    return [line for line in card.splitlines() if line.startswith(("vllm serve ", "transformers serve "))]


def served_base(kind, run_dir):
    return "FOLDER/base" if kind == "lora" else str(run_dir.parent / "qwen")


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_exported_policies_have_the_logprobs_of_the_engine(runs, tmp_path, kind, merge):
    run_dir = runs[kind].run_dir
    result = run("export", run_dir, *(["--merge"] if merge else []), tmp_path / "final")
    assert result.exit_code == 0, result.output
    seeupo.export(run_dir, tmp_path / "first", checkpoint=0, merge=merge)
    expectations = {}
    for name, iteration in (("final", 2), ("first", 0)):
        expected = engine_logprobs(run_dir, iteration)
        found = model_logprobs(load_exported(tmp_path / name), run_dir)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        expectations[name] = expected
        files = {path.name for path in (tmp_path / name).iterdir()}
        assert files >= FILES
        assert ("adapter_config.json" in files) == (kind != "full" and not merge)
        assert not files & {"state", "state.json", "manifest.json", "engine.json"}
        card = (tmp_path / name / "README.md").read_text()
        assert f"{iteration} iterations" in card
        assert ("PeftModel" in card) == ("adapter_config.json" in files)
        served = f"{served_base(kind, run_dir)} --enable-lora --max-lora-rank 8 --lora-modules agent=FOLDER"
        expected_lines = ["vllm serve FOLDER", "transformers serve FOLDER"]
        if "adapter_config.json" in files:
            expected_lines = [f"vllm serve {served}"]
        assert serving_lines(card) == expected_lines
    other = expectations["first"]
    if kind == "lora-folder":  # earns no reward, so only the warm start has trained it
        other = model_logprobs(AutoModelForCausalLM.from_pretrained(run_dir.parent / "qwen"), run_dir)
    assert (expectations["final"] - other).abs().max() > 1e-3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final", "first"]


@pytest.mark.parametrize("kind", ["lora", "lora-folder"])
def test_adapter_checkpoints_and_folders_can_be_trained_evaluated_and_shown(runs, tmp_path, kind):
    run_dir = runs[kind].run_dir
    exported = seeupo.export(run_dir, tmp_path / "out", checkpoint=1).path
    settings = ["--env", "pocket", "--plain", "--max-tokens", 6, "--max-turns", 4]
    options = ["-o", "turns=[2, 3]", "-o", "test_tasks=8", "-o", "train_tasks=64"]
    for name in (run_dir / "checkpoints" / "00001", exported):
        shown = run("agents", "show", "--model", name, *settings, *options)
        assert shown.exit_code == 0, shown.output
        evaluated = run("eval", name, *settings, *options, "--tasks", 1, "--out", tmp_path / f"{name.name}.json")
        assert evaluated.exit_code == 0, evaluated.output
    recipe = run_dir / "recipe.toml"
    trained = run("train", recipe, "--out", tmp_path / "next", "--model.name", exported, "--warm_start", "none",
                  "--run.iterations", 1)  # fmt: skip
    assert trained.exit_code == 0, trained.output
    start = engine_logprobs(tmp_path / "next", 0, turns_of=run_dir)
    torch.testing.assert_close(start, engine_logprobs(run_dir, 1), rtol=0, atol=1e-5)


def test_eval_and_show_take_a_checkpoint_with_the_settings_of_the_run(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runs["lora"]
    best = result.summary["best"]["iteration"]
    for which in ("best", best):
        evaluated = run("eval", result.run_dir, "--checkpoint", which, "--tasks", 2, "--json", "--out", f"{which}.json")
        assert evaluated.exit_code == 0, evaluated.output
        plan = json.loads(evaluated.stdout)["plan"]
        assert plan["policy"] == f"{result.run_dir}, checkpoint {best}"
        assert plan["sampling"]["max_tokens"] == 6
    assert run("agents", "show", "--model", result.run_dir, "--checkpoint", "best").exit_code == 0
    evaluation = seeupo.evaluate(result.run_dir, checkpoint="best", tasks=2)
    assert evaluation.plan.policy == f"{result.run_dir}, checkpoint {best}"


def test_the_best_checkpoint_is_exported(runs, tmp_path):
    best = runs["full"].summary["best"]["iteration"]
    result = run("export", runs["full"].run_dir, "--best", tmp_path / "out")
    assert f"the policy after {best} iterations, full weights" in result.output
    assert seeupo.export(runs["full"].run_dir, tmp_path / "again", checkpoint="best").iteration == best
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1]


def test_existing_folders_and_missing_checkpoints_are_refused(runs, tmp_path):
    run_dir = runs["full"].run_dir
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("out", "link"):
        with pytest.raises(RunError, match="already exists"):
            seeupo.export(run_dir, tmp_path / name)
    with pytest.raises(RunError, match="create it first"):
        seeupo.export(run_dir, tmp_path / "missing" / "out")
    with pytest.raises(CheckpointError, match="has no checkpoint 7; available: 0, 1, 2"):
        seeupo.export(run_dir, tmp_path / "new", checkpoint=7)
    result = run("export", run_dir, "--best", "--checkpoint", 1, tmp_path / "new")
    assert result.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_damaged_checkpoints_are_not_exported(runs, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(runs["full"].run_dir, run_dir)
    with (run_dir / "checkpoints" / "00001" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        seeupo.export(run_dir, tmp_path / "out", checkpoint=1)
    assert (run_dir / "checkpoints" / "00001").is_dir()


def test_an_unfinished_run_has_no_final_policy_but_checkpoints(tmp_path):
    with pytest.raises(Interrupted):
        train(small(), run_dir=tmp_path / "run", callback=InterruptAt(33))
    with pytest.raises(RunError, match=r"no final policy yet.*--checkpoint N"):
        seeupo.export(tmp_path / "run", tmp_path / "out")
    seeupo.export(tmp_path / "run", tmp_path / "out", checkpoint=0)
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device"), signal.SIGTERM])
def test_an_interrupted_export_leaves_nothing(runs, tmp_path, monkeypatch, stop):
    def copy(source, target):
        (target / "model.safetensors").write_text("half")
        if isinstance(stop, signal.Signals):
            os.kill(os.getpid(), stop)
        raise KeyboardInterrupt if isinstance(stop, signal.Signals) else stop

    monkeypatch.setattr(exporting, "_copy_model", copy)
    result = run("export", runs["full"].run_dir, tmp_path / "out")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_removed(runs, tmp_path):
    script = """
import os, signal, sys
from seeupo.runs import export
copy = export._copy_model
export._copy_model = lambda *paths: (copy(*paths), os.kill(os.getpid(), signal.SIGKILL))
export.export(*sys.argv[1:])
"""
    killed = subprocess.run([sys.executable, "-c", script, runs["full"].run_dir, tmp_path / "out"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] != ["out"]
    seeupo.export(runs["full"].run_dir, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_links_in_a_policy_are_not_followed(runs, tmp_path):
    run_dir, secret = tmp_path / "run", tmp_path / "secret.txt"
    shutil.copytree(runs["full"].run_dir, run_dir)
    secret.write_text("private")
    (run_dir / "policy" / "vocab.txt").symlink_to(secret)
    (run_dir / "policy" / "base").symlink_to(tmp_path)
    with pytest.raises(RunError, match="is a symbolic link, which is not followed"):
        seeupo.export(run_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
