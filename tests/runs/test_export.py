"""Merged adapters, and the policy's folder."""

import os
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM

from engines.examples import engine
from models.examples import random_turns
from seeupo.config.model_settings import LoraSettings
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.lora.adapters import merged_weights, plain_model
from seeupo.runs.export import export_policy
from seeupo.training.warm_start import LogLikelihood

TURNS = random_turns(0, count=8)


def logprobs(model):
    with torch.no_grad():
        return padded_logprobs(model, TURNS).logprobs


def test_merging_adapters_keeps_logprobs_and_the_adapted_model(tmp_path):
    local = engine(lora=LoraSettings(rank=2), learning_rate=1e-2)
    plain = logprobs(local.policy.model)
    for _ in range(3):
        local.step(TURNS, LogLikelihood(), normalizer=10)
    adapted = logprobs(local.policy.model)
    assert not torch.allclose(adapted, plain)
    model = local.policy.model
    merged = plain_model(model, dict(merged_weights(model))).to(torch.float64)
    torch.testing.assert_close(logprobs(merged), adapted, rtol=0, atol=1e-6)
    assert torch.equal(logprobs(local.policy.model), adapted)
    export_policy(local.export, tmp_path / "policy", lambda folder: "a card")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float64)
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in merged.named_parameters()}
    torch.testing.assert_close(logprobs(loaded), adapted, rtol=0, atol=1e-5)


def test_an_older_policy_is_replaced(tmp_path):
    local = engine()
    export_policy(local.export, tmp_path / "policy", lambda folder: "first")
    export_policy(local.export, tmp_path / "policy", lambda folder: "second")
    assert (tmp_path / "policy" / "README.md").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


KILLED_WHILE_REPLACING = """
import os, signal, sys
from pathlib import Path
from seeupo.runs.export import export_policy

folder, main = Path(sys.argv[1]), os.getpid()
count = deadly = 0

def hook(event, arguments):
    global count
    if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"} and os.getpid() != main:
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

def write(content):
    export = lambda folder: [(folder / name).write_text(content) for name in ("config.json", "model.safetensors")]
    export_policy(export, folder / "policy", lambda folder: content)

sys.addaudithook(hook)
status = 1
while status:
    deadly += 1
    write("first")
    assert [path.name for path in folder.iterdir()] == ["policy"], deadly
    child = os.fork()
    if child == 0:
        write("second")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    if (folder / "policy").exists():
        files = {path.name: path.read_text() for path in (folder / "policy").iterdir()}
        assert sorted(files) == ["README.md", "config.json", "model.safetensors"], (deadly, files)
        assert len(set(files.values())) == 1, (deadly, files)
print(deadly)
"""


def test_a_killed_process_leaves_the_older_policy_the_new_one_or_none(tmp_path):
    command = [sys.executable, "-c", KILLED_WHILE_REPLACING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_a_policy_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    happened, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda file: (happened.append(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(os, "rename", lambda *paths: (happened.append("rename"), rename(*paths)))
    export_policy(lambda folder: (folder / "config.json").touch(), tmp_path / "policy", lambda folder: "a card")
    policy = tmp_path / "policy"
    parts = {path.stat().st_ino for path in (policy, *policy.iterdir())}
    assert len(parts) == 3
    assert set(happened[:-2]) == parts
    assert happened[-2:] == ["rename", tmp_path.stat().st_ino]
