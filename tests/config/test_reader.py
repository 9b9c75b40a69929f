import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from seeupo.algorithms import ALGORITHMS, SeeUPO
from seeupo.config.loader import recipe_from_table
from seeupo.config.model_settings import LoraSettings, ModelSettings
from seeupo.config.option_types import describe_type
from seeupo.config.reader import Reader
from seeupo.config.schema import EnvironmentSettings, Recipe, RunSettings, WarmStartSettings
from seeupo.errors import ConfigError
from seeupo.utils.option_checks import OptionError, check_count


def problems_of(table: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        recipe_from_table(table)
    return list(caught.value.problems)


def starts(lines: list[str]) -> list[str]:
    """Return the part of each problem before the explanation: the key and its value."""
    return [line.partition(":")[0] for line in lines]


def test_empty_table_is_the_default_recipe():
    assert recipe_from_table({}) == Recipe()


def test_values_are_converted_to_their_types():
    recipe = recipe_from_table(
        {
            "run": {"seed": 3, "target": 1, "max_minutes": "none"},
            "model": {"lora": {"targets": ["q_proj", "v_proj"]}, "dtype": "bfloat16"},
            "environment": {"options": {"surface": "natural", "sizes": [1, 2], "none": "none"}},
            "algorithm": {"name": "seeupo", "clip": [0, 0.3], "ratio": "product"},
            "collect": {"reward": "score"},
            "warm_start": {"mistakes": {"slip": 1, "forget": 0.5}, "file": "none"},
        }
    )
    assert recipe == Recipe(
        run=RunSettings(seed=3, target=1.0),
        model=ModelSettings(lora=LoraSettings(targets=("q_proj", "v_proj")), dtype="bfloat16"),
        environment=EnvironmentSettings(options={"surface": "natural", "sizes": [1, 2], "none": "none"}),
        algorithm=SeeUPO(clip=(0.0, 0.3), ratio="product"),
        warm_start=WarmStartSettings(mistakes={"slip": 1.0, "forget": 0.5}),
    )
    assert isinstance(recipe.run.target, float)
    assert isinstance(recipe.algorithm.build(), SeeUPO)
    assert isinstance(recipe.algorithm.options["clip"][0], float)
    assert recipe.warm_start is not None
    assert isinstance(recipe.warm_start.mistakes["slip"], float)


def test_none_switches_sections_off():
    recipe = recipe_from_table({"warm_start": "none", "model": {"lora": "none"}})
    assert recipe.warm_start is None
    assert recipe.model.lora is None


def test_reading_copies_the_table():
    table = {"environment": {"options": {"a": [1]}}}
    recipe = recipe_from_table(table)
    table["environment"]["options"]["a"].append(2)
    assert recipe.environment.options == {"a": [1]}
    assert replace(recipe, environment=EnvironmentSettings()) == Recipe()


@pytest.mark.parametrize(
    ("section", "key", "value", "start", "expected"),
    [
        ("agent", "max_turns", "six", 'agent.max_turns = "six"', "integer"),
        ("agent", "max_turns", 6.0, "agent.max_turns = 6.0", "integer"),
        ("agent", "max_turns", True, "agent.max_turns = true", "integer"),
        ("agent", "max_turns", "none", 'agent.max_turns = "none"', "integer"),
        ("agent", "max_turns", 0, "agent.max_turns = 0", "integer >= 1"),
        ("agent", "temperature", True, "agent.temperature = true", "number"),
        ("agent", "temperature", 0, "agent.temperature = 0.0", "positive"),
        ("agent", "reasoning", 1, "agent.reasoning = 1", "true or false"),
        ("model", "name", 3, "model.name = 3", "string"),
        ("model", "tiny", 3, "model.tiny = 3", "table"),
        ("model", "tiny", "none", 'model.tiny = "none"', "table"),
        ("model", "tiny", {"width": 30}, "model.tiny.width = 30", "multiple of 2 * heads"),
        ("model", "lora", [{}], "model.lora = [{}]", 'table or "none"'),
        ("run", "target", "never", 'run.target = "never"', 'number >= 0 or "none"'),
        ("run", "target", math.inf, "run.target = inf", "finite"),
        ("run", "target", math.nan, "run.target = nan", "finite"),
        ("run", "seed", 2**63, "run.seed = 9223372036854775808", "64 bits"),
        ("run", "seed", 1 << 1000, "run.seed = a number of about 302 digits", "64 bits"),
        ("run", "seed", -1, "run.seed = -1", ">= 0"),
        ("collect", "reward", "scores", 'collect.reward = "scores"', "one of score, score_and_steps, or a function"),
        ("optimizer", "trainable", "lm_head", 'optimizer.trainable = "lm_head"', "list of strings"),
        ("optimizer", "trainable", ["a", "("], 'optimizer.trainable = "("', "regular expression"),
        ("optimizer", "trainable", ["a", 1], "optimizer.trainable[1] = 1", "string"),
        ("optimizer", "beta1", 1, "optimizer.beta1 = 1", "number in [0, 1)"),
        ("optimizer", "iterations", 3, "optimizer.iterations = 3", "run.iterations"),
        ("critic", "optimizer", {"trainable": ["a"]}, 'critic.optimizer.trainable = ["a"]', "empty"),
        ("algorithm", "clip", [0.1], "algorithm.clip = [0.1]", 'list: number in [0, 1), number >= 0 or "none"'),
        ("algorithm", "clip", [0.1, "x"], 'algorithm.clip[1] = "x"', "number"),
        ("algorithm", "clip", [0, -1], "algorithm.clip[1] = -1", "number >= 0"),
        ("algorithm", "name", "seupo", 'algorithm.name = "seupo"', "did you mean 'seeupo'?"),
        ("algorithm", "name", 3, "algorithm.name = 3", ", ".join(ALGORITHMS)),
        ("warm_start", "mistakes", {"slip": "x"}, 'warm_start.mistakes.slip = "x"', "number"),
        ("warm_start", "mistakes", 3, "warm_start.mistakes = 3", "table of numbers"),
        ("environment", "options", {"a": [None]}, "environment.options.a[0] = None", "string, number"),
        ("trackers", "wandb", "\ud800", 'trackers.wandb = "\\ud800"', "Unicode"),
        ("model", "name", ["long" * 100], f'model.name = ["{"long" * 15}"...]', "string"),
    ],
)  # fmt: skip
def test_invalid_value_is_reported_with_key_value_and_expectation(section, key, value, start, expected):
    (line,) = problems_of({section: {key: value}})
    assert line.startswith(f"{start}: ")
    assert expected in line


@pytest.mark.parametrize(
    ("table", "key", "suggestion"),
    [
        ({"optimiser": {}}, "optimiser", "did you mean optimizer?"),
        ({"agent": {"max_turn": 6}}, "agent.max_turn", "did you mean agent.max_turns?"),
        ({"learning_rate": 1}, "learning_rate", "optimizer.learning_rate or critic.optimizer.learning_rate?"),
        ({"algorithm": {"learning_rate": 1}}, "algorithm.learning_rate", "did you mean optimizer.learning_rate or "),
        ({"run": {"tasks": 1}}, "run.tasks", "did you mean collect.tasks or evaluation.tasks?"),
        ({"lora": {}}, "lora", "did you mean model.lora?"),
        ({"run": {"rank": 1}}, "run.rank", "did you mean model.lora.rank?"),
        ({"run": {"group_sizes": 1}}, "run.group_sizes", "did you mean collect.group_size?"),
        ({"algorithm": {"name": "grpo", "order": "natural"}}, "algorithm.order", "seeupo"),
        ({"trackers": {"xyzzy": 1}}, "trackers.xyzzy", "tensorboard, wandb, wandb_mode"),
        ({"trackers": {"a\nb\u2028": 1}}, 'trackers."a\\nb\\u2028"', "tensorboard, wandb, wandb_mode"),
        ({"trackers": {7: 1}}, "trackers.7", "tensorboard, wandb, wandb_mode"),
    ],
)  # fmt: skip
def test_unknown_key_is_reported_with_a_suggestion(table, key, suggestion):
    (line,) = problems_of(table)
    assert line.startswith(f"{key}: ")
    assert line.endswith(suggestion) or suggestion in line


def test_all_problems_are_reported_at_once():
    lines = problems_of(
        {
            "run": {"seed": -1, "iterations": -1, "patience": "few"},
            "agnet": {},
            "evaluation": {"k": 8, "attemtps": 8},
            "algorithm": "seeupo",
            "model": {"tiny": {"width": "wide"}, "batch_tokens": 0},
        }
    )
    assert starts(lines) == [
        "run.seed = -1",
        "run.iterations = -1",
        'run.patience = "few"',
        "agnet",
        "evaluation.attemtps",  # The default of attempts is below this k, but it may be what `attemtps` sets.
        'algorithm = "seeupo"',
        'model.tiny.width = "wide"',
        "model.batch_tokens = 0",
    ]
    assert 'algorithm.name = "seeupo"' in lines[5]


def test_default_that_does_not_fit_is_reported():
    assert starts(problems_of({"evaluation": {"k": 8}})) == ["evaluation.attempts = 4"]


def test_checks_across_sections_run_when_each_section_is_valid():
    table = {"model": {"lora": {}}, "optimizer": {"trainable": ["lm_head"]}}
    assert starts(problems_of(table)) == ["model.lora and optimizer.trainable"]
    assert starts(problems_of({**table, "run": {"seed": "x"}})) == ['run.seed = "x"']
    assert starts(problems_of({"evaluation": {"every": 0}, "run": {"target": 1}})) == ["run.target and run.patience"]


@dataclass(frozen=True, kw_only=True)
class Other:
    """An algorithm with an own option, a required one, a union, and checks of both kinds."""

    gamma: float = 0.9
    required: int
    width: int | tuple[int, ...] | Literal["auto"] = 1

    def __post_init__(self) -> None:
        check_count("required", self.required, 1)
        if self.gamma > 1:
            raise ValueError("too much\ngamma")


def read_other(table: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return an algorithm's options from a table, and the problems."""
    reader = Reader()
    return reader.section(Other, table, "algorithm"), reader.problems


def test_options_of_a_class_are_read():
    assert read_other({"gamma": 1, "required": 2}) == (Other(gamma=1.0, required=2), [])
    assert starts(read_other({"order": "natural"})[1]) == ["algorithm.order", "algorithm.required"]
    for width, read in ((3, 3), ([1, 2], (1, 2)), ("auto", "auto")):
        assert read_other({"required": 1, "width": width})[0] == Other(required=1, width=read)
    assert starts(read_other({"required": 1, "width": ["x"]})[1]) == ['algorithm.width = ["x"]']


def test_check_that_names_no_option_is_reported_for_its_section():
    assert read_other({"required": 1, "gamma": 2})[1] == ["algorithm: too much gamma"]
    assert starts(read_other({"required": 0, "gamma": 2})[1]) == ["algorithm.required = 0"]


def test_option_errors_carry_option_value_and_expectation():
    with pytest.raises(OptionError) as caught:
        check_count("keep", 0, 1)
    assert (caught.value.option, caught.value.value) == ("keep", 0)
    assert ">= 1" in caught.value.expected
    assert isinstance(caught.value, ValueError)


def test_error_has_one_line_per_problem():
    error = ConfigError(["a is 1", "b is 2"])
    assert error.problems == ("a is 1", "b is 2")
    assert str(error) == "a is 1\nb is 2"


def test_types_are_described_as_noun_phrases():
    assert describe_type(int | str | None) == 'integer or string or "none"'
    assert describe_type(tuple[int, str]) == "list: integer, string"
    assert describe_type(tuple[int, ...]) == "list of integers"
    assert describe_type(tuple[float, float]) == "list of 2 numbers"
    assert describe_type(Mapping[str, Any]) == "table"
    assert describe_type(Literal["a"]) == '"a"'
    assert describe_type(RunSettings | None) == 'table or "none"'
