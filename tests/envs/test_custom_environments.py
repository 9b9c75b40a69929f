"""The examples of the pages "Your environment" and "Custom environments" are complete and run."""

import re
from pathlib import Path

import pytest

from envs.textworld import hostile
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorials/your-environment.md").read_text()
PAGE = (DOCS / "environments/custom-environments.md").read_text()
EXAMPLE, ROLLOUT, WORKERS = re.findall(r"```python\n(.*?)```", TUTORIAL + PAGE, re.DOTALL)


@pytest.fixture
def factory():
    names = {}
    exec(compile(EXAMPLE, "custom-environments.md", "exec"), names)
    return names["GuessFactory"]()


def test_the_example_has_at_most_twenty_lines():
    lines = [line for line in EXAMPLE.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 20


def test_the_example_is_a_valid_environment(factory):
    for split in factory.splits:
        for task in factory.tasks(split):
            env, expert = factory.make(), factory.expert(task)
            result = env.reset(task, seed=0)
            assert (env.score(), result.done) == (0.0, False)
            result = env.step(expert(result))
            assert (env.score(), result.done) == (1.0, True)
            env.close()


def test_hints_lead_to_the_number(factory):
    env = factory.make()
    env.reset(factory.tasks("train")[0], seed=0)
    hints = [env.step(str(guess)).messages[0].content for guess in range(1, 10)]
    assert re.fullmatch(r"(Higher\. )*Yes\.( Lower\.)*", " ".join(hints))


@pytest.mark.parametrize("text", hostile.REFUSED, ids=lambda text: repr(text[:30]))
def test_hostile_text_gives_an_error_observation(factory, text):
    env = factory.make()
    env.reset(factory.tasks("train")[0], seed=0)
    assert env.step(text).messages[0].content.startswith("Error: ")
    assert env.score() == 0.0


def test_the_example_runs_in_this_process(factory, capsys):
    exec(compile(ROLLOUT, "custom-environments.md", "exec"), {"GuessFactory": lambda: factory})
    assert capsys.readouterr().out == "1.0\n"


@pytest.mark.filterwarnings("ignore:environments run without a sandbox")
def test_the_example_runs_in_workers(tmp_path, monkeypatch, capsys):
    (tmp_path / "guess.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(WORKERS, "custom-environments.md", "exec"), {})
    assert capsys.readouterr().out == "100\n"
    with EnvPool(EnvSpec(name="guess", factory="guess:GuessFactory"), workers=1) as pool:
        task = pool.tasks("test")[3]
        env, expert = pool.env(), pool.expert(task)
        result = env.step(expert(env.reset(task, seed=0)))
        assert result.terminated
        assert env.score() == 1.0
    (call,) = re.findall(r'EnvPool\("guess:GuessFactory", .*?\]\)', PAGE)
    with eval(call, {"EnvPool": EnvPool}) as pool:
        assert len(pool.tasks("train")) == 100
