"""`seeupo eval RUN` and `seeupo train RECIPE` do not run code that a stranger's files name."""

import json
import sys

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.cli.trust import permissions_for
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.envs.trust import TrustError, named_code

PAYLOAD = """
import contextlib
from pathlib import Path
from seeupo import reward_function

with contextlib.suppress(OSError):  # a sandboxed worker cannot write here
    Path(__file__).with_name("ran").touch()

@reward_function
def exact(completion, row):
    return float(completion.strip() == row["answer"])
"""
DATASET = """
[environment]
name = "dataset"
test_split = "train"
[environment.options]
train = "rows.jsonl"
reward = "payload.py:exact"
"""
GYMNASIUM = """
[environment]
name = "gymnasium"
[environment.options]
make = "subprocess:getoutput"
arguments = { cmd = "touch ran" }
"""
REWARD = """
[collect]
reward = "payload.py:exact"
"""
CLUSTER = """
[engine]
address = "10.9.8.7:6379"
"""
STUDY = """
recipe = "./cluster.toml"
seeds = [0]
[arms.one.algorithm]
name = "grpo"
[arms.two.algorithm]
name = "rloo"
"""
SHORT = ["--run.iterations", "1", "--collect.tasks", "1", "--collect.group_size", "2", "--evaluation.tasks", "1"]


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Return a directory with what a stranger sent, as the working directory."""
    (tmp_path / "payload.py").write_text(PAYLOAD)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}", "answer": "{n}"}}\n' for n in range(4)))
    (tmp_path / "dataset.toml").write_text(DATASET)
    (tmp_path / "gymnasium.toml").write_text(GYMNASIUM)
    (tmp_path / "reward.toml").write_text(REWARD)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "changing.toml").write_text(
        STUDY.replace("./cluster.toml", "tiny-pocket") + '[changes.engine]\naddress = "10.9.8.7:6379"\n'
    )
    for name in ("dataset", "gymnasium", "cluster"):
        run = tmp_path / f"{name}_run"
        (run / "policy").mkdir(parents=True)
        (run / "recipe.toml").write_text(recipe_to_toml(read_recipe(str(tmp_path / f"{name}.toml"))))
        (run / "env_info.json").write_text(json.dumps({"trusted_code": ["payload.py:exact", "subprocess:getoutput"]}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, **options):
    return CliRunner().invoke(main, list(arguments), **options)


@pytest.mark.parametrize(
    "command",
    [
        "train dataset.toml",
        "train dataset.toml --dry-run",
        "train gymnasium.toml",
        "train reward.toml",
        "train reward.toml --dry-run",
        "train gymnasium.toml --environment.name gymnasium",
        "eval dataset_run",
        "eval gymnasium_run",
        "eval gymnasium_run --trust payload.py:exact --unsandboxed",
        "eval expert --env dataset_run",
        "agents show --model dataset_run",
        "agents show --model gymnasium_run",
    ],
)
def test_strangers_files_run_no_code(strangers, command):
    result = run(*command.split())
    assert result.exit_code != 0
    if "--env" not in command:
        code = "subprocess:getoutput" if "gymnasium" in command else "payload.py:exact"
        assert f"--trust {code}" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (strangers / "ran").exists()
    assert "payload" not in sys.modules
    assert not (strangers / "runs").exists()


@pytest.fixture
def never_joined(monkeypatch):
    """Fail when Ray is asked to join a cluster."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail(f"joined {options['address']}"))


@pytest.mark.parametrize(
    "command",
    [
        "train cluster.toml",
        "train cluster.toml --dry-run",
        "train cluster.toml --sampler.count 1",
        "train cluster.toml --engine.kind cluster --engine.trainers 2",
        "train cluster.toml --trust 10.9.8.7:6378",
        "train cluster.toml --environment.options.theme 10.9.8.7:6379",
        "plan cluster.toml",
        "train --resume cluster_run",
        "compare study.toml",
        "compare changing.toml",
        "compare changing.toml --dry-run",
    ],
)
def test_the_cluster_of_a_stranger_is_not_joined(strangers, never_joined, command):
    result = run(*command.split())
    assert result.exit_code != 0
    assert "--trust 10.9.8.7:6379" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (strangers / "runs").exists()


@pytest.mark.parametrize("consent", [["--trust", "10.9.8.7:6379"], ["--engine.address", "10.9.8.7:6379"]])
@pytest.mark.parametrize("used", [["--sampler.count", "1"], ["--engine.kind", "cluster"]])
def test_a_cluster_named_on_the_command_line_is_joined(strangers, monkeypatch, consent, used):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")

    def join(*, address, **options):
        raise ConnectionError(f"nothing at {address}")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", join)
    result = run("train", "cluster.toml", "--model.tiny.width", "32", *used, *consent)
    assert "trusted Ray cluster: 10.9.8.7:6379" in result.stderr
    assert "nothing at 10.9.8.7:6379" in result.stderr


def test_code_is_not_trusted_because_of_a_text_in_the_engine(strangers):
    result = run("train", "reward.toml", "--engine", "{address = 'payload.py:exact'}")
    assert 'engine.address = "payload.py:exact"' in result.stderr
    assert not (strangers / "ran").exists()


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_trusted_code_runs_and_is_shown_and_recorded(strangers, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "swordfish")
    result = run(
        "train", "dataset.toml", "--trust", "payload.py:exact", "--out", "mine", "--agent.max_tokens", "4", *SHORT
    )
    assert result.exit_code == 0, result.output
    assert f"trusted code, run in workers: {strangers}/payload.py:exact" in result.stderr
    assert json.loads((strangers / "mine/env_info.json").read_text())["trusted_code"] == ["payload.py:exact"]
    recipe = (strangers / "mine/recipe.toml").read_text()
    assert "trust" not in recipe.replace("trust_region", "")
    assert run("eval", "mine").exit_code == 1, "a run cannot trust its code"
    assert run("eval", "mine", "--trust", "payload.py:exact", "--tasks", "1").exit_code == 0


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_code_named_on_the_command_line_is_trusted(strangers):
    options = ["-o", "train=rows.jsonl", "-o", "reward=payload.py:exact"]
    assert run("eval", "expert", "--env", "dataset", *options).exit_code == 0
    assert run("envs", "check", "dataset", *options).exit_code == 0
    typed = ["--environment.options.reward", "payload.py:exact", "--dry-run"]
    assert run("train", "dataset.toml", *typed).exit_code == 0
    whole = "{train = 'rows.jsonl', reward = 'payload.py:exact'}"
    assert run("train", "dataset.toml", "--environment.options", whole, "--dry-run").exit_code == 0


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_is_asked(strangers, monkeypatch, capsys, answer):
    monkeypatch.setattr("seeupo.cli.terminal.sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("seeupo.cli.terminal.sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answer)
    options = {"train": "rows.jsonl", "reward": "payload.py:exact"}

    def ask():
        code = named_code("dataset", options)
        return permissions_for(code, clusters=["auto"], trust=(), typed=[], unsandboxed=False)

    if answer:
        assert ask().trust == ("payload.py:exact", "auto")
    else:
        with pytest.raises(TrustError):
            ask()
    shown = capsys.readouterr().err
    assert str(strangers / "payload.py") in shown
    assert "auto (a Ray cluster" in shown
