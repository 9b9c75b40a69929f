"""Algorithms of installed packages and of the user: options, consent, and runs that can be resumed and evaluated."""

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner

from seeupo.algorithms import GRPO
from seeupo.cli import main
from seeupo.config.algorithms import AlgorithmSettings, load_algorithm
from seeupo.config.loader import read_recipe, recipe_to_toml
from seeupo.config.schema import Recipe
from seeupo.envs.trust import TrustError
from seeupo.errors import ConfigError, EnvError
from seeupo.evaluation.evaluate import run_settings
from seeupo.training.run import resume, train
from training.small_runs import small

CODE = '''
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seeupo.algorithms import GRPO

Path(__file__).with_name("ran").touch()
Scale = Literal["none", "half"]

@dataclass(frozen=True, kw_only=True)
class Mine(GRPO):
    """Options of my algorithm.

    Attributes:
        scale: Factor of the advantages.
    """

    scale: Scale = "none"

class NoAlgorithm: ...
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A directory with the module of an algorithm, as the working directory."""
    (tmp_path / "my_module.py").write_text(CODE)
    (tmp_path / "small.toml").write_text(recipe_to_toml(small(run={"iterations": 1})))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_module", None)


@pytest.fixture
def installed(package, monkeypatch):
    """An entry point of an installed package, "mine"."""
    entry = EntryPoint("mine", "my_module:Mine", "seeupo.algorithms")

    def entry_points(*, group, name="mine"):
        return [entry] if (group, name) == ("seeupo.algorithms", "mine") else []

    monkeypatch.setattr("seeupo.config.algorithms.entry_points", entry_points)
    return package


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def write_stranger(package, name, options=""):
    text = recipe_to_toml(small(algorithm=GRPO()))
    text = re.sub(r"\[algorithm\]\n(.+\n)+", f'[algorithm]\nname = "{name}"\n{options}\n', text)
    (package / "stranger.toml").write_text(text)


REFERENCES = ["my_module:Mine", "my_module.py:Mine", "./my_module.py:Mine"]


@pytest.mark.parametrize("name", REFERENCES)
def test_a_recipe_with_an_algorithm_is_read_without_importing_it(package, name):
    write_stranger(package, name, 'scale = "half"')
    recipe = read_recipe("./stranger.toml")
    assert recipe.algorithm == AlgorithmSettings(name=name, options={"scale": "half"})
    with pytest.raises(TrustError, match=re.escape(f"--trust {name}")):
        recipe.with_code(())
    with pytest.raises(TrustError):
        train(recipe, run_dir=package / "run")
    for command in (["train", "stranger.toml"], ["train", "stranger.toml", "--dry-run"], ["plan", "stranger.toml"]):
        assert f"--trust {name}" in run(*command).stderr
    assert run("recipes", "list").exit_code == 0
    assert not (package / "ran").exists()
    assert not (package / "run").exists()


@pytest.mark.parametrize("name", REFERENCES)
def test_a_trusted_algorithm_has_options_like_a_shipped_one(package, name):
    write_stranger(package, name, 'scale = "half"\nepochs = 2')
    algorithm = read_recipe("./stranger.toml").with_code([name]).algorithm
    assert algorithm.options == {**AlgorithmSettings(name="grpo").options, "scale": "half", "epochs": 2}
    assert type(algorithm.build()).__name__ == "Mine"
    assert algorithm.needs == GRPO().needs
    write_stranger(package, name, 'scale = "third"\nepoch = 2\nclip = 3')
    with pytest.raises(ConfigError) as caught:
        read_recipe("./stranger.toml").with_code([name])
    assert [line.split(": ")[0] for line in caught.value.problems] == [
        'algorithm.scale = "third"', "algorithm.epoch", "algorithm.clip = 3",
    ]  # fmt: skip


def test_code_that_is_no_algorithm_is_refused(package):
    for name in ("my_module:NoAlgorithm", "subprocess:getoutput", "my_module:Missing"):
        with pytest.raises(EnvError, match=name):
            load_algorithm(AlgorithmSettings(name=name), [name])


@pytest.mark.parametrize("name", REFERENCES[:2])
def test_a_run_with_a_named_algorithm_is_trained_resumed_and_evaluated(package, name):
    options = ["--algorithm.name", name, "--algorithm.scale", "half", "--out", "run"]
    trained = run("train", "small.toml", *options)
    assert trained.exit_code == 0, trained.output
    assert f"--trust {name}" in trained.output  # in the next commands
    text = (package / "run" / "recipe.toml").read_text()
    assert f'name = "{name}"' in text
    assert "minibatches = 1" in text  # options are complete
    assert run_settings("run")["environment"] == "pocket"
    refused = run("train", "--resume", "run", "--run.iterations", "2")
    assert f"--trust {name}" in refused.stderr
    resumed = run("train", "--resume", "run", "--run.iterations", "2", "--trust", name)
    assert resumed.exit_code == 0, resumed.output
    assert "2 iterations done" in resumed.output
    assert run("report", "run").exit_code == 0


def test_an_algorithm_object_of_a_program_is_recorded_by_its_class(package):
    import my_module

    recipe = small(algorithm=my_module.Mine(scale="half"), run={"iterations": 1})
    assert recipe.algorithm.name == "my_module:Mine"
    result = train(recipe, run_dir=package / "run")
    assert result.summary["algorithm"] == "my_module:Mine"
    resumed = resume(package / "run", trust=["my_module:Mine"], changes={"run.iterations": 2})
    assert resumed.reason == "2 iterations done"


def test_an_algorithm_of_an_installed_package_needs_no_consent(installed):
    write_stranger(installed, "mine", 'scale = "half"')
    recipe = read_recipe("./stranger.toml")
    assert not (installed / "ran").exists()
    assert recipe.code == ()
    assert recipe.with_code(()).algorithm.options["scale"] == "half"
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        Recipe.from_table({"algorithm": {"name": "minf"}})


def test_installed_algorithms_are_listed_and_shown(installed):
    listed = run("algorithms", "list")
    assert re.search(r"^mine\b", listed.output, re.MULTILINE)
    assert not (installed / "ran").exists()
    for name in ("mine", *REFERENCES):
        shown = run("algorithms", "show", name)
        assert shown.exit_code == 0, shown.output
        assert "Options of my algorithm." in shown.output
        assert re.search(r'^ +scale +"none" +Factor of the advantages', shown.output, re.MULTILINE)


def test_a_module_in_the_current_directory_is_found(tmp_path):
    (tmp_path / "my_module.py").write_text(CODE)
    command = [sys.executable, "-P", "-m", "seeupo", "algorithms", "show", "my_module:Mine"]  # -P: as the script has it
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Options of my algorithm." in shown.stdout, shown.stderr


def test_a_class_stands_for_its_default_options(package):
    import my_module

    for recipe in (small(algorithm=my_module.Mine), Recipe.from_table({"algorithm": my_module.Mine})):
        assert recipe.algorithm == AlgorithmSettings.from_algorithm(my_module.Mine())
        assert recipe.algorithm.build() == my_module.Mine()
    assert Recipe.from_table({"algorithm": GRPO}).algorithm == AlgorithmSettings(name="grpo")


@pytest.fixture
def finished(package):
    """A run with an algorithm object of a program."""
    import my_module

    train(small(algorithm=my_module.Mine(scale="half"), run={"iterations": 1}), run_dir=package / "run", progress=False)
    return package / "run"


@pytest.mark.parametrize("name", ["my_module:Mine", "not_installed", "__main__:Mine", "my_module:f.<locals>.Mine"])
def test_evaluation_and_report_need_no_algorithm(finished, name):
    sys.modules.pop("my_module")
    (finished.parent / "my_module.py").unlink()
    for file in (finished / "recipe.toml", finished / "env_info.json"):
        file.write_text(file.read_text().replace("my_module:Mine", name))
    for command in (["eval", "run", "--tasks", "2", "--attempts", "1", "-k", "1"], ["report", "run"]):
        done = run(*command)
        assert done.exit_code == 0, done.output
    refused = run("train", "--resume", "run", "--run.iterations", "2")
    remedy = "--trust my_module:Mine" if name == "my_module:Mine" else "my_module:My?"
    assert re.search(remedy, refused.stderr), refused.stderr


@pytest.mark.parametrize("name", ["__main__:Mine", "my_module:f.<locals>.Mine"])
def test_a_run_is_resumed_after_its_algorithm_was_moved_to_a_module(finished, name):
    for file in (finished / "recipe.toml", finished / "env_info.json"):
        file.write_text(file.read_text().replace("my_module:Mine", name))
    (finished.parent / "moved.py").write_text(CODE)
    resumed = run("train", "--resume", "run", "--run.iterations", "2", "--algorithm.name", "moved.py:Mine")
    assert resumed.exit_code == 0, resumed.output
    assert read_recipe(str(finished / "recipe.toml")).algorithm.options["scale"] == "half"
    changes = json.loads((finished / "env_info.json").read_text())["changes"]
    assert {"iteration": 1, "key": "algorithm.name", "old": name, "new": "moved.py:Mine"} in changes
    again = run("train", "--resume", "run", "--run.iterations", "3", "--trust", "moved.py:Mine")
    assert again.exit_code == 0, again.output
    other = run("train", "--resume", "run", "--algorithm.name", "my_module:NoAlgorithm")
    assert other.exit_code == 1


def test_the_same_name_on_the_command_line_keeps_the_options_of_the_run(finished):
    resumed = run("train", "--resume", "run", "--run.iterations", "2", "--algorithm.name", "my_module:Mine")
    assert resumed.exit_code == 0, resumed.output
    assert 'scale = "half"' in (finished / "recipe.toml").read_text()


def test_the_notebook_that_defined_an_algorithm_resumes_its_run(finished, monkeypatch):
    import my_module

    for file in (finished / "recipe.toml", finished / "env_info.json"):
        file.write_text(file.read_text().replace("my_module:Mine", "__main__:Mine"))
    monkeypatch.setattr(sys.modules["__main__"], "Mine", my_module.Mine, raising=False)
    with pytest.raises(TrustError):
        resume(finished, changes={"run.iterations": 2}, progress=False)
    resumed = resume(finished, trust=["__main__:Mine"], changes={"run.iterations": 2}, progress=False)
    assert resumed.reason == "2 iterations done"
