"""Damaged models, environments without tasks and an unusable home directory: one line, no traceback."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from seeupo.cli import main
from seeupo.config.model_settings import TinyConfig
from seeupo.envs.registry import lookup
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.models.tiny import tiny_tokenizer
from seeupo.utils import cache

SMALL = TinyConfig(width=16, layers=1, heads=2, context=64)


def error_of(*arguments, **environment):
    """Return the only line of output of a command that fails."""
    result = CliRunner().invoke(main, [str(each) for each in arguments], env={"COLUMNS": "500", **environment})
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    lines = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.output
    assert result.output.strip().endswith(lines[0])
    return lines[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    policy = load_policy("tiny", tiny=SMALL)
    save_model(policy.model, policy.tokenizer, folder)
    return folder


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def cut(model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def overwrite(model):
    (model / "model.safetensors").write_bytes(b"not safetensors" * 100)


def huge_header(model):
    (model / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def empty(model):
    (model / "model.safetensors").write_bytes(b"")


def drop_weights(model):
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def other_shape(model):
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def broken_config(model):
    (model / "config.json").write_text("{")


def broken_tokenizer(model):
    (model / "tokenizer.json").write_text('{"version": "1.0"}')


def other_tokenizer(model):
    words = tuple(f"word{number}" for number in range(2000))
    tiny_tokenizer(TinyConfig(words=words)).save_pretrained(model)


def sparse_vocabulary(model):
    """A tokenizer with few tokens, one of which has an id far beyond the embeddings."""
    path = model / "tokenizer.json"
    table = json.loads(path.read_text())
    vocabulary = table["model"]["vocab"]
    vocabulary[next(iter(vocabulary))] = 10**6
    path.write_text(json.dumps(table))


def no_tokenizer(model):
    for file in model.glob("tokenizer*"):
        file.unlink()


def tokenizer_of_another_class(model):
    """A word tokenizer with a model type for which transformers has a tokenizer class of its own."""
    tiny_tokenizer(TinyConfig(words=("city", "="))).save_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**config, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    weights = load_file(model / "model.safetensors")
    for name in ("q_proj", "k_proj", "v_proj"):
        weights[f"model.layers.0.self_attn.{name}.bias"] = torch.zeros(16)
    save_file(weights, model / "model.safetensors", {"format": "pt"})


DAMAGES = {
    cut: "could not be loaded",
    overwrite: "could not be loaded",
    huge_header: "could not be loaded",
    empty: "could not be loaded",
    drop_weights: "no weights for model.layers.0.mlp.up_proj.weight",
    other_shape: "could not be loaded",
    broken_config: "could not be loaded",
    broken_tokenizer: "could not be loaded",
    other_tokenizer: "embeddings; use the tokenizer that belongs to the model",
    sparse_vocabulary: "token ids up to 1000000",
    no_tokenizer: "has no tokenizer; expected tokenizer.json",
    tokenizer_of_another_class: "the tokenizer (Qwen2Tokenizer) loses text",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_models_are_one_line(model, tmp_path, damage):
    damage(model)
    message = error_of("models", "check", model)
    assert str(model) in message
    assert DAMAGES[damage] in message
    assert not message.startswith("Error: Error")
    out = tmp_path / "run"
    assert DAMAGES[damage] in error_of("train", "tiny-pocket", "--model.name", model, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("train tiny-pocket --environment.options.train_tasks 0", "option train_tasks=0: expected at least"),
        ("train tiny-pocket --environment.options.train_tasks -1", "option train_tasks=-1: expected at least"),
        ("train tiny-pocket --environment.options.test_tasks 0", "split 'test' of pocket has no tasks"),
        ("train tiny-pocket --evaluation.tasks 0", "evaluation.tasks = 0"),
        ("train tiny-pocket --collect.tasks 0", "collect.tasks = 0"),
        ("train tiny-pocket --warm_start.episodes 0", "warm_start.episodes = 0"),
        ("eval expert --env pocket -o test_tasks=0", "split 'test' of pocket has no tasks"),
        ("eval expert --env pocket -o train_tasks=0", "option train_tasks=0: expected at least"),
        ("envs check pocket -o train_tasks=0", "option train_tasks=0: expected at least"),
        ("envs check pocket -o test_tasks=0 --split test", "split 'test' of pocket has no tasks"),
        ("envs play pocket -o test_tasks=0 --split test", "split 'test' of pocket has no tasks"),
        ("agents show --model tiny --env pocket -o train_tasks=0", "option train_tasks=0: expected at least"),
    ],
)
def test_no_tasks_is_one_line(tmp_path, monkeypatch, command, named):
    monkeypatch.chdir(tmp_path)
    assert named in error_of(*command.split())
    assert list(tmp_path.rglob("*.toml")) == []


COMMANDS = [("envs", "install", "textworld"), ("models", "fetch", "smollm2-135m")]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory without a cache; other variables that would replace it are unset."""
    for name in ("SEEUPO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_home_that_is_a_file_is_one_line(home, command):
    home.rmdir()
    home.write_text("")
    message = error_of(*command)
    assert "Not a directory; set SEEUPO_CACHE to a writable directory" in message
    assert str(home) in message


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES, errno.ENOENT])
def test_a_home_that_cannot_be_written_is_one_line(home, monkeypatch, command, reason):
    def fail(*_, **__):
        raise OSError(reason, {errno.EROFS: "Read-only file system"}.get(reason, "no"))

    monkeypatch.setattr(Path, "mkdir", fail)
    assert "cannot be written" in error_of(*command)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_existing_cache_that_cannot_be_written_is_one_line(home, monkeypatch, command):
    def fail(*_, **__):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", fail)
    assert "Permission denied; set SEEUPO_CACHE" in error_of(*command)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_home_is_one_line(home, monkeypatch, command):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    assert "no home directory for the cache; set SEEUPO_CACHE" in error_of(*command)


def test_environments_can_be_listed_without_a_usable_home(home):
    home.rmdir()
    home.write_text("")
    result = CliRunner().invoke(main, ["envs", "list"])
    assert (result.exit_code, result.exception) == (0, None)
    assert lookup("textworld").name in result.output
