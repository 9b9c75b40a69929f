"""`seeupo plan` and `seeupo train --dry-run` on a machine without GPU and weights."""

import re

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.config.loader import read_recipe, recipe_names
from seeupo.planning.shapes import KNOWN_SHAPES

GPU_RECIPES = [name for name in recipe_names() if read_recipe(name).model.name in KNOWN_SHAPES]


@pytest.fixture(autouse=True)
def laptop(monkeypatch, tmp_path):
    """No network, no downloads and no installed benchmarks."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_dry_run_of_a_recipe_for_gpus_passes_without_gpu_weights_and_benchmarks(name):
    result = run("train", name, "--dry-run", *(["--trust", "auto"] if name == "two-nodes" else []))
    assert result.exit_code == 0, result.output
    assert "per device in an update" in result.output
    assert "fits          yes" in result.output
    assert "Nothing was trained." in result.output
    if name != "one-gpu-lora":
        assert "this machine  cannot run it: " in result.output
        assert "seeupo envs install" in result.output


def test_a_plan_that_does_not_fit_says_what_to_change():
    result = run("plan", "qwen3-14b-bfcl", "--gpus", 8, "--gpu-memory", 40)
    assert result.exit_code == 0, result.output
    assert "does not fit  an update needs" in result.output
    assert "change        --model.lora.rank 16 --model.reference_dtype none: " in result.output


def test_a_plan_says_what_becomes_of_gpus_that_the_recipe_does_not_ask_for():
    result = run("plan", "one-gpu-lora", "--gpus", 2, "--gpu-memory", 24)
    assert result.exit_code == 0, result.output
    assert "unused        1 of 2 GPUs: the recipe asks for 1" in result.output
    assert "change        --engine.kind cluster --engine.trainers 2 " in result.output
    assert "this machine  cannot run it: it has no GPU; the plan is for 2" in result.output
    assert "unused" not in run("plan", "one-gpu-lora", "--gpus", 1).output


def test_a_plan_gives_the_time_of_the_whole_run():
    lines = run("plan", "one-gpu-lora", "--gpus", 1).output.splitlines()
    (line,) = [line for line in lines if line.startswith("whole run")]
    assert "GPU-hours for 60 iterations" in line
    assert not any("GPU-hours" in line for line in run("plan", "one-gpu-lora", "--gpus", 0).output.splitlines())


def test_a_plan_of_months_on_cpus_is_not_called_possible():
    lines = run("plan", "one-gpu-lora", "--gpus", 0).output.splitlines()
    assert any(re.fullmatch(r"whole run     at most \d{3} days for 60 iterations", line) for line in lines)
    (last,) = [line for line in lines if line.startswith("this machine")]
    assert re.search(r"cannot run it: without a GPU it takes up to \d{3} days; .*--gpus 1", last)
    assert run("plan", "smollm2-pocket", "--gpus", 0).output.count("takes up to") == 0


def test_a_plan_takes_overrides_and_files(tmp_path):
    assert "2 tasks x 4 attempts" in run("plan", "--collect.tasks", 2, "--collect.group_size", 4).output
    (tmp_path / "mine.toml").write_text("[collect]\ntasks = 3\n")
    assert "100 iterations of 3 tasks" in run("plan", tmp_path / "mine.toml").output


def test_a_plan_resolves_epochs():
    result = run("plan", "--run.iterations", "none", "--run.epochs", 2)
    assert "256 iterations of 32 tasks" in result.output  # 2 x 4096 / 32


def test_a_dry_run_of_a_model_on_an_unreachable_hub_says_so():
    result = run("train", "--model.name", "some/model", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "cannot run it: there is no folder 'some/model' and no downloaded model of that name" in result.output
    assert run("plan", "--model.name", "some/model").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.name", "tinny"], "unknown model 'tinny'"),
        (["--environment.name", "poket"], "did you mean 'pocket'?"),
        (["--environment.options.surfce", "natural"], "did you mean 'surface'?"),
        (["--optimizer.trainable", '["nothing"]'], "'nothing' matches no parameter"),
        (["--gpus", "-1"], "--gpus"),
        (["--gpu-memory", "0"], "--gpu-memory"),
    ],
)
def test_mistakes_are_user_errors(arguments, message):
    result = run("plan", *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output
