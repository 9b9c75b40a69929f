"""Study files are read strictly: every mistake is one line that names the key."""

import pytest

from comparison.small_study import STUDY, write_study
from seeupo.comparison.comparison import Comparison
from seeupo.comparison.result_store import Store
from seeupo.comparison.study_file import read_study, study_names
from seeupo.config.loader import read_recipe
from seeupo.errors import ConfigError


def comparison(folder, text):
    return Comparison(*read_study(str(write_study(folder, text))), Store(folder / "out"))


def problems(folder, text):
    with pytest.raises(ConfigError) as caught:
        comparison(folder, text)
    return "\n".join(caught.value.lines)


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_are_valid(name, tmp_path):
    study, recipe = read_study(name)
    assert Comparison(study, recipe, Store(tmp_path)).counts()["runs"] == len(study.arms) * len(study.seeds)


def test_recipe_is_relative_to_the_study_file(tmp_path, monkeypatch):
    path = write_study(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    study, recipe = read_study(str(path))
    assert recipe.evaluation.every == 0
    assert recipe.collect == read_recipe(str(tmp_path / "small.toml")).collect
    assert list(study.arms) == ["seeupo", "grpo"]
    assert recipe.run.threads == study.threads == 1


GRPO_ARM = '[arms.grpo.algorithm]\nname = "grpo"\nkl_coef = 0.0'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seeds = [5, 6]", "", "seeds: a value is required"),
        ("seeds = [5, 6]", "seeds = [5, 5]", "seeds = [5, 5]: expected different numbers"),
        ("seeds = [5, 6]", "seeds = [1, 6]", "tuning_seeds = [1]: expected seeds that are not reported"),
        ("tuning_seeds = [1]", "", "tuning_seeds = []: expected at least one seed"),
        ("tuning_seeds = [1]", "tuning_seeds = [1]\nmatch = 'time'", 'match = "time": expected one of'),
        ("tuning_seeds = [1]", "tuning_seeds = [1]\nmach = 'none'", "mach: unknown key; did you mean match?"),
        ("[arms.grpo.algorithm]", "[arms.'../x'.algorithm]", "names of at most 40 lower-case letters"),
        ("[arms.grpo.algorithm]", "[arms.grpo.collect]\ntasks = 3\n[arms.grpo.algorithm]", "arms.grpo.collect.tasks"),
        ('name = "grpo"', 'name = "gpro"', "arms.grpo: algorithm.name"),
        ("kl_coef = 0.0", "kl = 0.0", "arms.grpo: algorithm.kl"),
        ("kl_coef = 0.0", "minibatches = 2", "arms.grpo.algorithm.minibatches: it is chosen by match"),
        ("optimizer.learning_rate = [1e-3, 3e-3]", "run.seed = [1]", "grid.run.seed"),
        ("optimizer.learning_rate = [1e-3, 3e-3]", "optimizer.learning_rate = 1e-3", "a list of values to try"),
        ("optimizer.learning_rate = [1e-3, 3e-3]", "optimizer.beta1 = [0.0, 2]", "optimizer.beta1"),
        ("every = 0", "every = 0\n[changes.run]\niterations = 0", "run.iterations = 0"),
        ("every = 0", "evry = 0", "evaluation.evry"),
        ("small.toml", "nowhere.toml", "nowhere.toml does not exist"),
        ('name = "grpo"\n', "", "arms.grpo"),
        (GRPO_ARM, "[arms.grpo]\nalgorithm = 5", "a table with algorithm.name"),
        (GRPO_ARM, "[arms.grpo]\nalgorithm = 'name'", "a table with algorithm.name"),
        (
            "optimizer.learning_rate = [1e-3, 3e-3]",
            "algorithm.minibatches = [1, 4]",
            "algorithm.minibatches: it changes",
        ),
        ("optimizer.learning_rate = [1e-3, 3e-3]", "algorithm.epochs = [1, 4]", "algorithm.epochs: it changes"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, expected):
    assert old in STUDY
    assert expected in problems(tmp_path, STUDY.replace(old, new))


def test_one_arm_is_no_comparison(tmp_path):
    assert "at least two arms" in problems(tmp_path, STUDY[: STUDY.index("[arms.grpo")])
