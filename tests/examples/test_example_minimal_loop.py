"""The example `minimal_loop.py` and the loop of docs/guides/own-loop.md run, and notice a missing weight sync."""

import random
import re
from pathlib import Path

import minimal_loop
import pytest
import torch

from seeupo.algorithms import SeeUPO
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.loading import load_policy
from seeupo.types import Trajectory, Turn

FAST = minimal_loop.Settings(
    iterations=2, tasks=4, group_size=4, test_tasks=32, demonstrations=64, warm_start_batches=4, width=16
)


def test_minimal_loop_prints_the_success_rate_of_each_iteration(capsys):
    history = minimal_loop.main(FAST)
    assert len(history) == FAST.iterations + 1
    assert all(0 <= rate <= 1 for rate in history)
    lines = capsys.readouterr().out.splitlines()
    assert [float(line.split("rate ")[1].split()[0]) for line in lines] == pytest.approx(history, abs=0.005)


def random_trajectories() -> list[Trajectory]:
    generator = random.Random(0)

    def trajectory(group: int, member: int) -> Trajectory:
        name, prompt, turns = f"{group}-{member}", (1, 2, group + 3), []
        for index in range(generator.randint(1, 3)):
            action = tuple(generator.randint(1, 50) for _ in range(generator.randint(1, 5)))
            turns.append(Turn(name, index, prompt, action))
            prompt = (*prompt, *action, 7)
        return Trajectory(name, str(group), str(group), tuple(turns), reward=generator.random() if group else 1.0)

    return [trajectory(group, member) for group in range(3) for member in range(4)]


def test_update_equals_the_update_of_seeupo():
    weights = []
    for update in (minimal_loop.update, SeeUPO().update):
        policy = load_policy("tiny", dtype="float64", tiny=TinyConfig(width=16, layers=1, heads=2, context=64))
        start = [parameter.detach().clone() for parameter in policy.model.parameters()]
        update(LocalEngine(policy, OptimizerSettings(learning_rate=1e-2, beta1=0.0)), random_trajectories())
        weights.append([p.detach() - s for p, s in zip(policy.model.parameters(), start, strict=True)])
    assert max(float(change.abs().max()) for change in weights[0]) > 1e-3
    for mine, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_minimal_loop_without_weight_sync_raises(monkeypatch):
    monkeypatch.setattr(LocalSampler, "sync", lambda sampler, engine, version: None)
    with pytest.raises(RuntimeError, match=r"the weights have changed since version 0 was synced; call sampler\.sync"):
        minimal_loop.main(FAST)


def documented_loop() -> str:
    page = Path(__file__).parents[2] / "docs" / "guides" / "own-loop.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def run_documented_loop(code: str) -> None:
    names: dict[str, object] = {}
    exec(compile(code, "own-loop.md", "exec"), names)
    names["train"]("tiny", "pocket", iterations=2, tasks=2, group_size=2)


def test_documented_loop_prints_the_score_of_each_iteration(capsys):
    run_documented_loop(documented_loop())
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]


def test_documented_loop_without_weight_sync_raises():
    sync = "            runner.sampler.sync(engine, iteration + 1)\n"
    assert sync in documented_loop()
    with pytest.raises(RuntimeError, match=r"version 0 .*Call sampler\.sync after every update"):
        run_documented_loop(documented_loop().replace(sync, ""))
