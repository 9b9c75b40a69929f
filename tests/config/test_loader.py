import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from seeupo.algorithms import ALGORITHMS, GRPO, SeeUPO
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.cli.options import parse_options
from seeupo.config import loader
from seeupo.config.keys import keys_of
from seeupo.config.loader import (
    read_recipe,
    recipe_from_table,
    recipe_names,
    recipe_text,
    recipe_to_table,
    recipe_to_toml,
)
from seeupo.config.model_settings import LoraSettings, ModelSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.config.option_types import alternatives
from seeupo.config.schema import (
    AgentSettings,
    EnvironmentSettings,
    Recipe,
    RunSettings,
    TrackerSettings,
    WarmStartSettings,
)
from seeupo.config.toml import parse_value, toml
from seeupo.errors import ConfigError


def problems_of_file(path, text: str | bytes, overrides=()) -> list[str]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        read_recipe(str(path), overrides)
    return list(caught.value.problems)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.toml"


@pytest.fixture
def overridden(path):
    """Reads a file with overrides."""

    def read(*overrides: tuple[str, str], text: str = "") -> Recipe:
        path.write_text(text)
        return read_recipe(str(path), overrides)

    return read


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Two recipes in place of those that come with the library."""
    directory = tmp_path / "shipped"
    directory.mkdir()
    (directory / "pocket.toml").write_text("# a comment\n[run]\nseed = 3\n")
    (directory / "bfcl.toml").write_text("")
    (directory / "__init__.py").write_text("")
    monkeypatch.setattr(loader, "_shipped", lambda: directory)
    return directory


# Files and names.


def test_recipe_is_read_by_name_or_path(shipped, path):
    assert recipe_names() == ["bfcl", "pocket"]
    assert recipe_text("pocket").startswith("# a comment\n")
    assert read_recipe("pocket").run.seed == 3
    assert read_recipe("bfcl") == Recipe()
    path.write_bytes(b"\xef\xbb\xbf[run]\r\nseed = 4\r\n")  # as some editors write it
    assert read_recipe(str(path)).run.seed == 4


def test_unknown_recipe_is_reported_with_a_suggestion(shipped, tmp_path):
    with pytest.raises(ConfigError, match=r"\"pockte\" .*did you mean 'pocket'\?"):
        read_recipe("pockte")
    with pytest.raises(ConfigError, match="available: bfcl, pocket"):
        recipe_text("../x")
    with pytest.raises(ConfigError, match=r"pocket.toml does not exist; .* 'pocket'"):
        read_recipe(str(tmp_path / "pocket.toml"))


def test_shipped_recipes_are_valid():
    for name in recipe_names():
        assert isinstance(read_recipe(name), Recipe)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
def test_file_without_an_end_is_rejected(path):
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="characters"):
        read_recipe(str(path))


def test_unreadable_file_is_one_line(tmp_path, path):
    for wrong, reason in ((tmp_path, "directory"), (tmp_path / "no.toml", "does not exist"), ("a\0.toml", "null")):
        with pytest.raises(ConfigError, match=reason) as caught:
            read_recipe(str(wrong))
        assert len(caught.value.problems) == 1
        assert len(str(caught.value).splitlines()) == 1
    (line,) = problems_of_file(path, b"\xff\xfea\0")
    assert line.startswith(str(path))
    assert "UTF-8" in line
    assert "0xff" in line


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[run]\nseed = none\n", "line 2, column 8", '"none"'),
        ("[run]\nseed = 1\nseed = 2", "line 3, at the end", "overwrite"),
        ("# \u2028\n[run]\nseed =", "line 3, at the end", "invalid value"),
        ("[run]\nseed = 1\n[run]\n", "line 3, column 5", "twice"),
        ("run = 1\nrun.seed = 2\n", "line 2, column 13", "overwrite"),
        ("a = " + "[" * 9999 + "]" * 9999, "", "nested"),
        ("a = " + "9" * 9999, "", "digits"),
        ("\n" + "a." * 50_000 + "a = 1", "line 2", "dots"),
        ("#" * 2**21, "line 1, at the end", "more than 1048576 characters"),
    ],
)
def test_invalid_toml_is_one_line_with_its_place(path, text, place, reason):
    (line,) = problems_of_file(path, text)
    assert line.startswith(f"{path}, {place}")
    assert reason in line


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("[run]\nseed = 0x" + "f" * 9999, "run.seed = a number of about 12040 digits: ", "64 bits"),
        ("[" + ".".join("a" * 900) + "]\n", "a: ", ", ".join(keys_of(Recipe))),
        ("[run.seed" + ".a" * 900 + "]\n", "run.seed = {a = {a = {...}}}: ", "integer"),
        ("[environment.options" + ".a" * 900 + "]\n", "environment.options" + ".a" * 22 + ": ", "20 levels"),
        ("[[agent]]\nmax_turns = 3\n", "agent = [{max_turns = 3}]: ", "table"),
        ("[run]\nseed = 2024-01-01\n", "run.seed = 2024-01-01: ", "integer"),
        ("[environment.options]\nday = 2024-01-01T01:02:03Z\n", "environment.options.day = 2024-01-01 ", "string"),
        ("agent = 1979-05-27\n", "agent = 1979-05-27: ", "table"),
    ],
)  # fmt: skip
def test_extreme_values_are_one_line(path, text, start, expected):
    (line,) = problems_of_file(path, text)
    assert line.startswith(start)
    assert expected in line


# Renamed keys.

# Overrides.


def test_overrides_are_toml_or_unquoted_strings(overridden):
    recipe = overridden(
        ("algorithm.order", "natural"),
        ("agent.max_turns", "6"),
        ("environment.options.surface", "natural"),
        ("environment.options.size", "3"),
        ("environment.options.deep.list", "[1, 'a']"),
        ("algorithm.clip", "none"),
        ("algorithm.trust_region.kl", "0.2"),
        ("optimizer.trainable", '["lm_head"]'),
        ("agent.reasoning", "false"),
        ("optimizer.learning_rate", "1"),
        text="[algorithm]\norder = 'random'\n[agent]\nmax_turns = 2\nmax_tokens = 3\n",
    )
    assert recipe == Recipe(
        algorithm=SeeUPO(order="natural", clip=None, trust_region=TrustRegionSettings(kl=0.2)),
        agent=AgentSettings(max_turns=6, max_tokens=3, reasoning=False),
        environment=EnvironmentSettings(options={"surface": "natural", "size": 3, "deep": {"list": [1, "a"]}}),
        optimizer=OptimizerSettings(trainable=("lm_head",), learning_rate=1.0),
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("7", "7"),
        ("true", "true"),
        ("1.0", "1.0"),
        ("[1]", "[1]"),
        ("2024-01-01", "2024-01-01"),
        ('"7"', "7"),
        ("", ""),
    ],
)
def test_number_is_a_string_where_a_string_is_expected(overridden, text, name):
    assert overridden(("model.name", text)).model.name == name
    assert overridden(("trackers.wandb", text)).trackers.wandb == name


def test_optional_string_can_be_none(overridden):
    assert overridden(("trackers.wandb", "none"), text="trackers.wandb = 'p'").trackers == TrackerSettings()
    assert overridden(("model.name", "none")).model.name == "none"


def test_overrides_switch_sections_on_and_off(overridden):
    off = 'warm_start = "none"\n'
    assert overridden(("warm_start.episodes", "7"), text=off).warm_start == WarmStartSettings(episodes=7)
    assert overridden(("warm_start.episodes", "7")).warm_start == WarmStartSettings(episodes=7)
    assert overridden(("warm_start", "none"), text="[warm_start]\nepisodes = 7\n").warm_start is None
    assert overridden(("model.lora.rank", "4")).model.lora == LoraSettings(rank=4)
    assert overridden(("model.lora", "{rank = 4}")).model.lora == LoraSettings(rank=4)
    assert overridden(("run.seed", "1"), ("run.seed", "2")).run.seed == 2


def test_overrides_are_as_strict_as_files(path):
    lines = problems_of_file(
        path,
        "[agent]\nmax_turn = 3\nmax_turns = 4\n[run]\nseed = 3\n[model]\ntiny = 'none'\n",
        [
            ("run.seed.x", "1"),
            ("model.tiny.width", "7"),
            ("run..x", "1"),
            ("", "1"),
            ("optimizer.iterations", "3"),
            ("algorithm.carry", "maybe"),
            ("algorithm.clip", "[0.1, 0.2"),
            ("collect.tasks", "1\n[run]\nseed = 2"),
            ("collect.group_size", "9" * 9999),
            ("evaluation.k", "[" * 9999),
            ("agent.trainable", "1"),
            (".".join("a" * 5000), "1"),
        ],
    )
    assert [line.partition(": ")[0] for line in lines] == [
        "run.seed.x",
        "model.tiny.width",
        '"run..x"',
        '""',
        "agent.max_turn",
        "agent.trainable",
        'model.tiny = "none"',
        "optimizer.iterations = 3",
        'algorithm.carry = "maybe"',
        'algorithm.clip = "[0.1, 0.2"',
        'collect.tasks = "1\\n[run]\\nseed = 2"',
        f'collect.group_size = "{"9" * 60}"...',
        f'evaluation.k = "{"[" * 60}"...',
        "a",
    ]


def test_wrong_override_is_reported_without_checks_across_sections(path):
    (line,) = problems_of_file(path, "model.lora = {}\noptimizer.trainable = ['lm_head']\n", [("run..x", "1")])
    assert line.startswith('"run..x": ')


def test_other_algorithm_drops_the_options_of_the_recipe():
    recipe = read_recipe("tiny-pocket", [("algorithm.name", "grpo"), ("algorithm.minibatches", "2")])
    assert recipe.algorithm.build() == GRPO(minibatches=2)
    assert read_recipe("tiny-pocket", [("algorithm.name", "seeupo")]) == read_recipe("tiny-pocket")
    with pytest.raises(ConfigError, match=r"algorithm\.order: unknown key"):
        read_recipe("tiny-pocket", [("algorithm.name", "grpo"), ("algorithm.order", "reverse")])


# Writing.


def test_written_recipe_is_complete_and_in_order():
    text = recipe_to_toml(Recipe(model=ModelSettings(lora=LoraSettings())))
    table = tomllib.loads(text)
    assert text.startswith('warm_start = "none"\n\n[run]\nseed = 0\n')
    assert [name for name in table if name != "warm_start"] == [
        name for name in keys_of(Recipe) if name != "warm_start"
    ]
    for name, section in table.items():
        part = SeeUPO if name == "algorithm" else alternatives(keys_of(Recipe)[name].hint)[0]
        wanted = {inner for inner, entry in keys_of(part).items() if entry.set_by is None}
        assert section == "none" or set(section) == wanted | ({"name"} if name == "algorithm" else set())
    assert table["optimizer"]["learning_rate"] == 1e-06
    assert table["environment"]["options"] == {}


@pytest.mark.parametrize(
    ("recipe", "start"),
    [
        (Recipe(trackers=TrackerSettings(wandb="none")), 'trackers.wandb = "none": '),
        (Recipe(environment=EnvironmentSettings(options={"a": math.inf})), "environment.options.a = inf: "),
        (Recipe(environment=EnvironmentSettings(options={"a": None})), "environment.options.a = None: "),
        (Recipe(environment=EnvironmentSettings(options={"a": "\udfff"})), 'environment.options.a = "\\udfff": '),
        (Recipe(environment=EnvironmentSettings(options={"\udfff": 1})), 'environment.options."\\udfff": '),
        (Recipe(run=RunSettings(seed=2**64)), "run.seed = a number of about 20 digits: "),
    ],
)
def test_recipe_that_a_file_cannot_hold_is_not_written(recipe, start):
    with pytest.raises(ConfigError) as caught:
        recipe_to_toml(recipe)
    (problem,) = caught.value.problems
    assert problem.startswith(start)


def test_key_that_is_set_by_another_is_not_written():
    recipe = Recipe(optimizer=OptimizerSettings(iterations=100))
    assert recipe_from_table(recipe_to_table(recipe)) == Recipe()


# Any recipe, table, file and override.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.recursive(
    st.one_of(st.booleans(), WHOLE, NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type, in ranges that pass most checks."""
    if get_origin(hint) is Annotated:
        return values(get_args(hint)[0])
    origin, arguments = get_origin(hint), get_args(hint)
    simple = {int: st.integers(2, 2**62), float: st.floats(0.0, 0.999), bool: st.booleans(), str: TEXTS, Any: PLAIN}
    if hint in simple:
        return simple[hint]
    if NoneType in arguments:
        return st.none() | values(*alternatives(hint)).filter(lambda value: value != "none")
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        return st.lists(values(arguments[0]), max_size=3).map(tuple) if several else st.tuples(*map(values, arguments))
    return st.dictionaries(TEXTS, values(arguments[1]), max_size=3) if origin is Mapping else sections(hint)


@st.composite
def sections(draw: st.DrawFn, section: Any) -> Any:
    keys = [key for key in keys_of(section).values() if key.set_by is None]
    chosen_keys = draw(st.lists(st.sampled_from(keys), unique_by=lambda key: key.name))
    chosen = {
        key.name: draw(st.one_of(*map(sections, ALGORITHMS.values())) if key.name == "algorithm" else values(key.hint))
        for key in chosen_keys
    }
    try:
        return section(**chosen)
    except ValueError:
        assume(False)


@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(recipe=sections(Recipe))
def test_written_recipe_is_read_back(recipe):
    table = tomllib.loads(recipe_to_toml(recipe))
    assert table == recipe_to_table(recipe)
    assert recipe_from_table(table) == recipe


@given(table=st.dictionaries(TEXTS, PLAIN, max_size=4))
@example(table={"": {"a.b": {'"\\\n\x7f\x00\u2028\U0010ffff': '"\\\n\r\t\b\f\x7f\x00\x85\u2028\U0010ffff'}}})
@example(table={"a": [1e-06, 1e22, -0.0, 5e-324, 1.7976931348623157e308, {"b": [{}, []]}]})
def test_any_options_are_written_unchanged(table):
    recipe = Recipe(environment=EnvironmentSettings(options=table))
    text = recipe_to_toml(recipe)
    assert recipe_from_table(tomllib.loads(text)) == recipe
    assert tomllib.loads(f"a = {toml(table)}") == {"a": table}
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_table_may_hold_an_algorithm_object():
    algorithm = GRPO(clip=None, minibatches=2)
    recipe = recipe_from_table({"run": {"seed": 1}, "algorithm": algorithm})
    assert recipe == Recipe(run=RunSettings(seed=1), algorithm=algorithm)
    assert recipe.algorithm.build() == algorithm
    with pytest.raises(ConfigError, match=r"algorithm = .*: expected a table with a name"):
        recipe_from_table({"algorithm": "grpo"})


def test_a_run_has_iterations_or_epochs():
    assert Recipe().run.total_iterations == 100
    assert recipe_from_table({"run": {"iterations": 3}}).run.total_iterations == 3
    with pytest.raises(ConfigError, match=r"run.epochs = 3: expected \"none\" beside iterations = 4"):
        recipe_from_table({"run": {"epochs": 3, "iterations": 4}})
    with pytest.raises(ConfigError, match=r"run.epochs = 0"):
        recipe_from_table({"run": {"epochs": 0}})


def test_an_unresolved_number_of_epochs_has_no_iterations():
    run = recipe_from_table({"run": {"epochs": 3}}).run
    with pytest.raises(ValueError, match="not resolved"):
        _ = run.total_iterations
    assert run.resolved(100, 32).total_iterations == 10  # 9.4 rounded up


def test_float16_names_the_data_types_that_remain(path):
    problems = problems_of_file(path, '[model]\ndtype = "float16"\n')
    assert problems == ['model.dtype = "float16": expected one of "float32", "bfloat16", "float64".']


def test_a_reference_policy_that_shares_weights_has_no_data_type_of_its_own(path):
    (problem,) = problems_of_file(path, '[model]\nreference_dtype = "bfloat16"\n[model.lora]\nrank = 4\n')
    assert problem.startswith('model.reference_dtype = "bfloat16": expected "none" with model.lora')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("true", True),
        ("1_000", 1000),
        ("'2'", "2"),
        ('"2"', "2"),
        ("easy", "easy"),
        ("a b, c", "a b, c"),
        ("", ""),
        ("[1, 'a']", [1, "a"]),
        ("{size = 8, wrap = true}", {"size": 8, "wrap": True}),
        ('{"size": 8, "wrap": true, "seed": null}', {"size": 8, "wrap": True, "seed": None}),
        ("null", None),
        ("2024-01-01", "2024-01-01"),
        ("[2024-01-01]", "[2024-01-01]"),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_overrides_and_options_of_environments_have_one_syntax(text, value):
    assert parse_value(text) == value
    assert parse_options(None, None, (f"key={text}",)) == {"key": value}
    if "null" not in text:
        recipe = read_recipe("tiny-pocket", [("environment.options.key", text)])
        assert recipe.environment.options["key"] == value
