"""Training of an agent program through the gateway."""

import hashlib
from pathlib import Path

import pytest

import seeupo
from seeupo.callbacks import Callback
from seeupo.envs.trust import TrustError
from seeupo.errors import ConfigError, EnvError
from seeupo.training.interrupts import Interrupted

PROGRAM = """
import seeupo
from seeupo.envs.pocket import PocketFactory

FACTORY = PocketFactory(turns=(2, 4), train_tasks=64)

@seeupo.agent_program
async def solve(task, client):
    env = FACTORY.make()
    result = env.reset(task, seed=0)
    history = []
    for _ in range(8):
        history += [{"role": message.role, "content": message.content} for message in result.messages]
        completion = await client.chat.completions.create(model="policy", messages=history)
        content = completion.choices[0].message.content
        history.append({"role": "assistant", "content": content})
        result = env.step(content)
        if result.done:
            break
    return env.score()

@seeupo.agent_program
async def plan(task, client):
    address = str(client.base_url).rstrip("/").removesuffix("/v1")
    score = 0.0
    for role in ("planner", "worker"):
        own = client.with_options(base_url=f"{address}/e/{client.api_key}/{role}/v1")
        completion = await own.chat.completions.create(model="policy", messages=[{"role": "user", "content": "go"}])
        score += len(completion.choices[0].message.content) % 3 == 0
    return score / 2

def unmarked(task, client):
    return 1.0
"""
SMALL = {
    "run": {"iterations": 3, "checkpoint_every": 1, "threads": 1},
    "model": {"name": "tiny", "tiny": {"width": 32, "layers": 1, "heads": 2, "context": 128}},
    "environment": {"name": "pocket", "options": {"turns": [2, 4], "train_tasks": 64}},
    "collect": {"tasks": 4, "group_size": 4},
    "evaluation": {"tasks": 4, "attempts": 2, "k": 2, "every": 2},
    "warm_start": {"episodes": 64, "batches": 30},
}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "my_agent.py"
    path.write_text(PROGRAM)
    return f"{path}:solve"


def recipe(program=None, **agent):
    agent = {"reasoning": False, "max_tokens": 8, "max_turns": 8, "concurrency": 16, **agent}
    return seeupo.Recipe.from_table({**SMALL, "agent": agent if program is None else {**agent, "program": program}})


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


class Stops(Callback):
    """Interrupts a run after two iterations."""

    def on_iteration(self, iteration):
        if iteration == 2:
            raise Interrupted("stop")


def test_a_program_is_trained_like_its_environment_and_resumes_exactly(tmp_path, program):
    """The weights are those of training in the environment, bit for bit."""
    expected = seeupo.train(recipe(), run_dir=tmp_path / "environment", progress=False)
    trained = seeupo.train(recipe(program), run_dir=tmp_path / "program", trust=[program], progress=False)
    assert digest(trained.policy) == digest(expected.policy)
    assert trained.summary["after"]["avg@2"] == expected.summary["after"]["avg@2"]
    with pytest.raises(Interrupted):
        seeupo.train(
            recipe(program), run_dir=tmp_path / "stopped", trust=[program], callback=Stops(), progress=False
        )  # fmt: skip
    resumed = seeupo.resume(tmp_path / "stopped", trust=[program], progress=False)
    assert digest(resumed.policy) == digest(expected.policy)
    evaluation = seeupo.evaluate(resumed.run_dir, trust=[program], tasks=4, attempts=2, k=2)
    assert evaluation.summary()["failures"] == 0


def test_a_program_that_only_a_recipe_names_does_not_run(tmp_path, program):
    Path(program.removesuffix(":solve")).write_text("raise SystemExit('it ran')")
    with pytest.raises(TrustError, match=r"my_agent\.py:solve"):
        seeupo.train(recipe(program), run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_program_must_be_marked(tmp_path, program):
    unmarked = program.replace(":solve", ":unmarked")
    with pytest.raises(EnvError, match=r"a function marked with @seeupo\.agent_program"):
        seeupo.train(recipe(unmarked), run_dir=tmp_path / "run", trust=[unmarked], progress=False)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"reasoning": True}, r"agent\.reasoning = true: expected false, because an agent program"),
        ({"max_observation_tokens": 5}, r"agent\.max_observation_tokens"),
        ({"max_prompt_tokens": 5}, r"agent\.max_prompt_tokens"),
    ],
)
def test_settings_of_prompts_are_refused_with_a_program(program, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        recipe(program, **settings)
    with pytest.raises(ConfigError, match=r"agent\.program"):
        recipe("solve")


def test_each_role_has_an_adapter(tmp_path, program):
    planner = program.replace(":solve", ":plan")
    lora = {"rank": 2, "per_role": ["planner", "worker"]}
    model = {**SMALL["model"], "lora": lora}
    agent = {"reasoning": False, "max_tokens": 4, "program": planner}
    table = {**SMALL, "model": model, "agent": agent, "warm_start": None}
    trained = seeupo.train(seeupo.Recipe.from_table(table), run_dir=tmp_path / "run", trust=[planner], progress=False)
    exported = seeupo.export(trained.run_dir, tmp_path / "agent")
    assert {"role_planner", "role_worker"} <= {path.name for path in exported.path.iterdir()}
    evaluation = seeupo.evaluate(trained.run_dir, trust=[planner], tasks=2, attempts=1, k=1)
    assert evaluation.summary()["failures"] == 0
    with pytest.raises(ConfigError, match=r"model\.lora\.per_role: expected an agent program"):
        seeupo.Recipe.from_table({**table, "agent": {"reasoning": False}})
