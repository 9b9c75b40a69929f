"""Mistakes in a custom environment: every command prints the contract, or the author's own file and line."""

import importlib
import sys

import pytest
from click.testing import CliRunner

from seeupo import Recipe, evaluate, train
from seeupo.cli import main
from seeupo.errors import EnvError

pytestmark = pytest.mark.filterwarnings("ignore:environments run without a sandbox")

MODULE = """\
from seeupo.types import Message, StepResult, Task


class Env:
    def reset(self, task, *, seed):
        return StepResult((Message("user", "hello"),))

    def step(self, text):
        return StepResult((), terminated=True)

    def score(self):
        return 1.0

    def close(self): ...


class WrongType(Env):
    def step(self, text):
        return "hello", 1.0, True


class Raises(Env):
    def step(self, text):
        return {}[text.strip()]


class NotANumber(Env):
    def score(self):
        return float("nan")


class WrongTypeFactory:
    splits = ("train", "test")
    make = WrongType

    def tasks(self, split):
        return [Task(f"{split}-{n}", split) for n in range(2)]

    def expert(self, task):
        return lambda result: "x"


class RaisesFactory(WrongTypeFactory):
    make = Raises


class NotANumberFactory(WrongTypeFactory):
    make = NotANumber


class EasyFactory(WrongTypeFactory):
    make = Env


class TwiceFactory(WrongTypeFactory):
    make = Env

    def tasks(self, split):
        return [Task("a", split), Task("a", split)]
"""
MISTAKES = {
    "WrongType": "step must return StepResult, got tuple ({file}:18)",
    "Raises": "step raised KeyError: '' ({file}:24)",
    "NotANumber": "score must return a number from 0 to 1, got nan ({file}:28)",
    "Twice": "tasks must return unique task ids, got 'a' twice ({file}:58)",
}
each_mistake = pytest.mark.parametrize("name", list(MISTAKES))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "wrong_env.py"
    path.write_text(MODULE)
    return path


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def expected(name, file):
    return MISTAKES[name].format(file=file)


@each_mistake
@pytest.mark.parametrize(
    "command", ["train --environment.name {}", "eval expert --env {}", "agents show --model tiny --env {}"]
)
def test_commands_print_the_mistake_and_nothing_else(file, name, command):
    result = run(*command.format(f"wrong_env:{name}Factory").split())
    assert result.exit_code == 1
    consent, first, *trace = [line for line in result.output.splitlines() if line]
    assert consent == f"trusted code, run in workers: wrong_env:{name}Factory"
    assert first.startswith(f"Error: wrong_env:{name}Factory")
    assert first.endswith(expected(name, file))
    if name == "Raises":
        assert trace[:3] == [
            "  Traceback (most recent call last):",
            f'    File "{file}", line 24, in step',
            "      return {}[text.strip()]",
        ]
        assert trace[-1] == "  KeyError: ''"
    assert "seeupo/" not in "".join(trace)
    assert bool(trace) == (name == "Raises")
    assert not (file.parent / "runs").exists()


@each_mistake
def test_python_raises_the_same_words(file, name, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    factory = getattr(importlib.import_module("wrong_env"), f"{name}Factory")()
    try:
        for call in (
            lambda: train(Recipe(), run_dir=file.parent / "run", environment=factory),
            lambda: evaluate("expert", factory),
        ):
            with pytest.raises(Exception, match="wrong_env") as caught:
                call()
            assert str(caught.value).split("\n")[0].endswith(expected(name, file))
            if name != "Twice":
                assert isinstance(caught.value, EnvError)
        assert not (file.parent / "run").exists()
    finally:
        del sys.modules["wrong_env"]


@each_mistake
def test_check_prints_the_mistake_and_why_it_fails(file, name):
    result = run("envs", "check", f"wrong_env:{name}Factory")
    assert result.exit_code == 1
    assert expected(name, file) in result.stderr
    assert result.stdout == ""  # the first task is tried before all others
    if name == "Raises":
        assert result.stderr.count("Traceback") == 1
        assert "seeupo/" not in result.stderr


def test_check_says_why_it_exits_with_1(file):
    result = run("envs", "check", "wrong_env:EasyFactory", "--split", "test")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: wrong_env:EasyFactory did not pass the check",
        "  split test: the no-op policy solved 2 of 2 tasks; expected none, because it does nothing. See task test-0",
    ]
    as_json = run("envs", "check", "wrong_env:EasyFactory", "--split", "test", "--json")
    assert '"passed": false' in as_json.stdout
    assert "expected none" in as_json.stderr
