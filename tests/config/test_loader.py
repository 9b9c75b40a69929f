import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from seeupo.algorithms import ALGORITHMS, GRPO, SeeUPO
from seeupo.config import loader as configuration
from seeupo.config.loader import (
    alternatives,
    in_words,
    keys_of,
    read_recipe,
    recipe_from_table,
    recipe_names,
    recipe_text,
    recipe_to_table,
    recipe_to_toml,
)
from seeupo.config.schema import (
    AgentSettings,
    EnvironmentSettings,
    ModelSettings,
    Recipe,
    RunSettings,
    TrackerSettings,
    WarmStartSettings,
)
from seeupo.config.toml import toml
from seeupo.engines.local import LoraSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.errors import ConfigError


def problems_of(table: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        recipe_from_table(table)
    return list(caught.value.problems)


def problems_of_file(path, text: str | bytes, overrides=()) -> list[str]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        read_recipe(str(path), overrides)
    return list(caught.value.problems)


@pytest.fixture
def mine(tmp_path):
    return tmp_path / "mine.toml"


@pytest.fixture
def overridden(mine):
    """Reads a file with overrides."""

    def read(*overrides: tuple[str, str], text: str = "") -> Recipe:
        mine.write_text(text)
        return read_recipe(str(mine), overrides)

    return read


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Two recipes in the place of those that come with the library."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "pocket.toml").write_text("# a comment\n[run]\nseed = 3\n")
    (folder / "bfcl.toml").write_text("")
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(configuration, "_shipped", lambda: folder)
    return folder


# Tables.


def test_an_empty_table_is_the_default_recipe():
    assert recipe_from_table({}) == Recipe()


def test_values_become_what_the_types_say():
    recipe = recipe_from_table(
        {
            "run": {"seed": 3, "target": 1, "max_minutes": "none"},
            "model": {"lora": {"targets": ["q_proj", "v_proj"]}, "dtype": "bfloat16"},
            "environment": {"options": {"surface": "natural", "sizes": [1, 2], "none": "none"}},
            "algorithm": {"name": "seeupo", "clip": [0, 0.3], "carry_ratio": "product"},
            "collect": {"shape": "none"},
            "warm_start": {"mistakes": {"slip": 1, "forget": 0.5}, "file": "none"},
        }
    )
    assert recipe == Recipe(
        run=RunSettings(seed=3, target=1.0),
        model=ModelSettings(lora=LoraSettings(targets=("q_proj", "v_proj")), dtype="bfloat16"),
        environment=EnvironmentSettings(options={"surface": "natural", "sizes": [1, 2], "none": "none"}),
        algorithm=SeeUPO(clip=(0.0, 0.3), carry_ratio="product"),
        warm_start=WarmStartSettings(mistakes={"slip": 1.0, "forget": 0.5}),
    )
    assert isinstance(recipe.run.target, float)
    assert isinstance(recipe.algorithm, SeeUPO)
    assert recipe.algorithm.clip is not None
    assert isinstance(recipe.algorithm.clip[0], float)
    assert recipe.warm_start is not None
    assert isinstance(recipe.warm_start.mistakes["slip"], float)


def test_none_switches_sections_off():
    recipe = recipe_from_table({"warm_start": "none", "model": {"lora": "none"}})
    assert recipe.warm_start is None
    assert recipe.model.lora is None


@pytest.mark.parametrize(
    ("section", "key", "value", "line"),
    [
        ("agent", "max_turns", "six", 'agent.max_turns is "six"; accepted: whole number'),
        ("agent", "max_turns", 6.0, "agent.max_turns is 6.0; accepted: whole number"),
        ("agent", "max_turns", True, "agent.max_turns is true; accepted: whole number"),
        ("agent", "max_turns", "none", 'agent.max_turns is "none"; accepted: whole number'),
        ("agent", "temperature", True, "agent.temperature is true; accepted: number"),
        ("agent", "reasoning", 1, "agent.reasoning is 1; accepted: true or false"),
        ("model", "name", 3, "model.name is 3; accepted: text"),
        ("model", "tiny", 3, "model.tiny is 3; accepted: table"),
        ("model", "tiny", "none", 'model.tiny is "none"; accepted: table'),
        ("model", "lora", [{}], 'model.lora is [{}]; accepted: table or "none"'),
        ("run", "target", "never", 'run.target is "never"; accepted: number or "none"'),
        ("run", "target", math.inf, "run.target is inf; it must be finite"),
        ("run", "target", math.nan, "run.target is nan; it must be finite"),
        ("run", "seed", 2**63, "run.seed is 9223372036854775808; it must be a whole number of at most 64 bits"),
        ("run", "seed", 1 << 1000, "run.seed is a number of about 302 digits; "
         "it must be a whole number of at most 64 bits"),
        ("run", "seed", -1, "run.seed is -1; it must be a whole number of at least 0"),
        ("collect", "shape", "papercode", 'collect.shape is "papercode"; accepted: one of "none", "paper_code"'),
        ("optimizer", "trainable", "lm_head", 'optimizer.trainable is "lm_head"; accepted: list of texts'),
        ("optimizer", "trainable", ["a", 1], "optimizer.trainable[1] is 1; accepted: text"),
        ("optimizer", "iterations", 3, "optimizer.iterations is 3; leave it out, as run.iterations sets it"),
        ("algorithm", "clip", [0.1], 'algorithm.clip is [0.1]; accepted: list of 2 numbers or "none"'),
        ("algorithm", "clip", [0.1, "x"], 'algorithm.clip[1] is "x"; accepted: number'),
        ("algorithm", "clip", [0, -1], "algorithm.clip high is -1.0; "
         "it must be finite and at least 0; None switches clipping off"),
        ("algorithm", "name", "seupo", "algorithm.name is \"seupo\"; did you mean 'seeupo'?"),
        ("algorithm", "name", 3, f"algorithm.name is 3; there are: {', '.join(ALGORITHMS)}"),
        ("warm_start", "mistakes", {"slip": "x"}, 'warm_start.mistakes.slip is "x"; accepted: number'),
        ("warm_start", "mistakes", 3, "warm_start.mistakes is 3; accepted: table of numbers"),
        ("environment", "options", {"a": [None]}, "environment.options.a[0] is None; "
         "accepted: text, number, true or false, list or table"),
        ("trackers", "wandb", "\ud800", 'trackers.wandb is "\\ud800"; it must be text of valid Unicode'),
        ("model", "name", ["long" * 100], f'model.name is ["{"long" * 15}"...]; accepted: text'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_is_accepted(section, key, value, line):
    assert problems_of({section: {key: value}}) == [line]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"optimiser": {}}, "optimiser: there is no such section; did you mean optimizer?"),
        ({"agent": {"max_turn": 6}}, "agent.max_turn: there is no such key; did you mean agent.max_turns?"),
        ({"learning_rate": 1}, "learning_rate: there is no such key; did you mean optimizer.learning_rate or "
         "critic.optimizer.learning_rate?"),
        ({"algorithm": {"learning_rate": 1}},
         "algorithm.learning_rate: there is no such key; did you mean optimizer.learning_rate or "
         "critic.optimizer.learning_rate?"),
        ({"run": {"tasks": 1}}, "run.tasks: there is no such key; did you mean collect.tasks or evaluation.tasks?"),
        ({"lora": {}}, "lora: there is no such section; did you mean model.lora?"),
        ({"run": {"rank": 1}}, "run.rank: there is no such key; did you mean model.lora.rank?"),
        ({"run": {"group_sizes": 1}}, "run.group_sizes: there is no such key; did you mean collect.group_size?"),
        ({"trackers": {"xyzzy": 1}},
         "trackers.xyzzy: there is no such key; there are: tensorboard, wandb, wandb_mode"),
        ({"trackers": {"a\nb\u2028": 1}},
         'trackers."a\\nb\\u2028": there is no such key; there are: tensorboard, wandb, wandb_mode'),
        ({"trackers": {7: 1}}, "trackers.7: there is no such key; there are: tensorboard, wandb, wandb_mode"),
    ],
)  # fmt: skip
def test_an_unknown_name_comes_with_the_one_that_was_meant(table, line):
    assert problems_of(table) == [line]


def test_everything_that_is_wrong_is_said_at_once():
    lines = problems_of(
        {
            "run": {"seed": -1, "iterations": 0, "patience": "few"},
            "agnet": {},
            "evaluation": {"k": 8, "sampels": 8},
            "algorithm": "seeupo",
            "model": {"tiny": {"width": "wide"}, "batch_tokens": 0},
        }
    )
    assert lines == [
        'run.patience is "few"; accepted: whole number or "none"',
        "run.seed is -1; it must be a whole number of at least 0",
        "run.iterations is 0; it must be a whole number of at least 1",
        "agnet: there is no such section; did you mean agent?",
        # That the default of samples is below this k is not said: it may be what `sampels` is meant to change.
        "evaluation.sampels: there is no such key; did you mean evaluation.samples?",
        'algorithm is "seeupo"; accepted: table with a name; write algorithm.name = "seeupo"',
        'model.tiny.width is "wide"; accepted: whole number',
        "model.batch_tokens is 0; it must be a whole number of at least 1",
    ]


def test_a_default_that_does_not_fit_is_named():
    assert problems_of({"evaluation": {"k": 8}}) == ["evaluation.samples is 4; it must be a whole number of at least 8"]


def test_sections_that_do_not_fit_together_are_said_when_each_is_fine(mine):
    table = {"model": {"lora": {}}, "optimizer": {"trainable": ["lm_head"]}}
    assert problems_of(table) == ["model.lora and optimizer.trainable exclude each other; leave one out"]
    assert problems_of({**table, "run": {"seed": "x"}}) == ['run.seed is "x"; accepted: whole number']
    (line,) = problems_of_file(mine, "model.lora = {}\noptimizer.trainable = ['lm_head']\n", [("run..x", "1")])
    assert line.startswith('"run..x" is no key')


@dataclass(frozen=True, kw_only=True)
class Other:
    """An algorithm with a key of its own, one without a default, and a union."""

    gamma: float = 0.9
    needed: int
    width: int | tuple[int, ...] | Literal["auto"] = 1


def test_the_name_picks_the_algorithm(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "other", Other)
    recipe = recipe_from_table({"algorithm": {"name": "other", "gamma": 1, "needed": 2}})
    assert recipe.algorithm == Other(gamma=1.0, needed=2)
    assert recipe_to_table(recipe)["algorithm"] == {"name": "other", "gamma": 1.0, "needed": 2, "width": 1}
    assert recipe_from_table(recipe_to_table(recipe)) == recipe
    assert problems_of({"algorithm": {"name": "other", "order": "natural"}}) == [
        "algorithm.order: there is no such key; it is one of seeupo",
        "algorithm.needed is needed and has no default",
    ]
    for width, read in ((3, 3), ([1, 2], (1, 2)), ("auto", "auto")):
        table = {"algorithm": {"name": "other", "needed": 1, "width": width}}
        assert recipe_from_table(table).algorithm == Other(needed=1, width=read)
    assert problems_of({"algorithm": {"name": "other", "needed": 1, "width": ["x"]}}) == [
        'algorithm.width is ["x"]; accepted: whole number or list of whole numbers or "auto"'
    ]


def test_the_error_has_one_line_for_each_problem():
    error = ConfigError(["a is 1", "b is 2"])
    assert error.problems == ("a is 1", "b is 2")
    assert str(error) == "a is 1\nb is 2"


# Files and names.


def test_a_recipe_is_a_name_or_a_file(shipped, mine):
    assert recipe_names() == ["bfcl", "pocket"]
    assert recipe_text("pocket").startswith("# a comment\n")
    assert read_recipe("pocket").run.seed == 3
    assert read_recipe("bfcl") == Recipe()
    mine.write_bytes(b"\xef\xbb\xbf[run]\r\nseed = 4\r\n")  # as some editors write it
    assert read_recipe(str(mine)).run.seed == 4


def test_an_unknown_recipe_comes_with_the_nearest(shipped, tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe is called \"pockte\" .*did you mean 'pocket'\?"):
        read_recipe("pockte")
    with pytest.raises(ConfigError, match="there are: bfcl, pocket"):
        recipe_text("../x")
    with pytest.raises(ConfigError, match=r"pocket.toml does not exist; 'pocket' alone is the recipe"):
        read_recipe(str(tmp_path / "pocket.toml"))


def test_shipped_recipes_are_read():
    for name in recipe_names():
        assert isinstance(read_recipe(name), Recipe)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path, mine):
    for path, reason in ((tmp_path, "is a folder"), (tmp_path / "no.toml", "does not exist"), ("a\0.toml", "null")):
        with pytest.raises(ConfigError, match=reason) as caught:
            read_recipe(str(path))
        assert len(caught.value.problems) == 1
        assert len(str(caught.value).splitlines()) == 1
    (line,) = problems_of_file(mine, b"\xff\xfea\0")
    assert line.endswith("mine.toml is not UTF-8 text (byte 0 is 0xff); save it as UTF-8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[run]\nseed = none\n", 'line 2, column 8: invalid value; text stands in quotes, "none" too'),
        ("[run]\nseed = 1\nseed = 2", "line 3, at its end: cannot overwrite a value"),
        ("# \u2028\n[run]\nseed =", "line 3, at its end: invalid value; text stands in quotes, \"none\" too"),
        ("[run]\nseed = 1\n[run]\n", 'line 3, column 5: cannot declare (\'run\',) twice'),
        ("run = 1\nrun.seed = 2\n", "line 2, column 13: cannot overwrite a value"),
        ("a = " + "[" * 9999 + "]" * 9999, "its values are nested too deeply"),
        ("a = " + "9" * 9999, "a number has more digits than can be read"),
    ],
)  # fmt: skip
def test_bad_toml_is_one_line_with_its_place(mine, text, reason):
    (line,) = problems_of_file(mine, text)
    assert line.removeprefix(str(mine)) == f", {reason}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[run]\nseed = 0x" + "f" * 9999, "run.seed is a number of about 12040 digits; "
         "it must be a whole number of at most 64 bits"),
        ("[" + ".".join("a" * 5000) + "]\n", f"a: there is no such section; there are: {', '.join(keys_of(Recipe))}"),
        ("[run.seed" + ".a" * 5000 + "]\n", "run.seed is {a = {a = {...}}}; accepted: whole number"),
        ("[environment.options" + ".a" * 5000 + "]\n",
         "environment.options" + ".a" * 22 + " is nested too deeply; 20 levels are accepted"),
        ("[[agent]]\nmax_turns = 3\n", "agent is [{max_turns = 3}]; accepted: table"),
        ("[run]\nseed = 2024-01-01\n", "run.seed is 2024-01-01; accepted: whole number"),
        ("[environment.options]\nday = 2024-01-01T01:02:03Z\n", "environment.options.day is 2024-01-01 01:02:03+00:00; "
         "accepted: text, number, true or false, list or table"),
        ("agent = 1979-05-27\n", "agent is 1979-05-27; accepted: table"),
    ],
)  # fmt: skip
def test_absurd_files_are_one_line_too(mine, text, line):
    assert problems_of_file(mine, text) == [line]


# Overrides.


def test_overrides_are_toml_or_text(overridden):
    recipe = overridden(
        ("algorithm.order", "natural"),
        ("agent.max_turns", "6"),
        ("environment.options.surface", "natural"),
        ("environment.options.size", "3"),
        ("environment.options.deep.list", "[1, 'a']"),
        ("algorithm.clip", "none"),
        ("algorithm.carry_clip", "[0.1, 0.2]"),
        ("optimizer.trainable", '["lm_head"]'),
        ("agent.reasoning", "false"),
        ("optimizer.learning_rate", "1"),
        text="[algorithm]\norder = 'random'\n[agent]\nmax_turns = 2\nmax_tokens = 3\n",
    )
    assert recipe == Recipe(
        algorithm=SeeUPO(order="natural", clip=None, carry_clip=(0.1, 0.2)),
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
def test_where_text_is_accepted_a_number_is_text(overridden, text, name):
    assert overridden(("model.name", text)).model.name == name
    assert overridden(("trackers.wandb", text)).trackers.wandb == name


def test_text_that_may_be_left_out_can_be_none(overridden):
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


def test_overrides_are_as_strict_as_files(mine):
    lines = problems_of_file(
        mine,
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
    assert lines == [
        "run.seed.x: run.seed is 3, which has no keys",
        'model.tiny.width: model.tiny is "none", which has no keys',
        '"run..x" is no key; a key is a section and a name, such as agent.max_turns',
        '"" is no key; a key is a section and a name, such as agent.max_turns',
        "agent.max_turn: there is no such key; did you mean agent.max_turns?",
        "agent.trainable: there is no such key; did you mean optimizer.trainable or critic.optimizer.trainable?",
        'model.tiny is "none"; accepted: table',
        "optimizer.iterations is 3; leave it out, as run.iterations sets it",
        'algorithm.carry is "maybe"; accepted: true or false',
        'algorithm.clip is "[0.1, 0.2"; accepted: list of 2 numbers or "none"',
        'collect.tasks is "1\\n[run]\\nseed = 2"; accepted: whole number',
        f'collect.group_size is "{"9" * 60}"...; accepted: whole number',
        f'evaluation.k is "{"[" * 60}"...; accepted: whole number',
        f"a: there is no such section; there are: {', '.join(keys_of(Recipe))}",
    ]


# Writing.


def test_a_written_recipe_is_complete_and_in_order():
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
    ("recipe", "line"),
    [
        (Recipe(trackers=TrackerSettings(wandb="none")), 'trackers.wandb is the text "none", which a file cannot say'),
        (Recipe(environment=EnvironmentSettings(options={"a": math.inf})), "environment.options.a is inf; it must be"),
        (Recipe(environment=EnvironmentSettings(options={"a": None})), "environment.options.a is None; accepted: "),
        (Recipe(environment=EnvironmentSettings(options={"a": "\udfff"})), 'environment.options.a is "\\udfff"; it'),
        (Recipe(run=RunSettings(seed=2**64)), "run.seed is a number of about 20 digits; it must be"),
        (Recipe(algorithm=Other(needed=1)), "algorithm is of the class Other, which has no name; there are: "),
    ],
)
def test_what_a_file_cannot_say_is_not_written(recipe, line):
    with pytest.raises(ConfigError) as caught:
        recipe_to_toml(recipe)
    (problem,) = caught.value.problems
    assert problem.startswith(line)


def test_a_key_that_another_sets_is_not_written():
    recipe = Recipe(optimizer=OptimizerSettings(iterations=100))
    assert recipe_from_table(recipe_to_table(recipe)) == Recipe()


# Anything at all.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.recursive(
    st.one_of(st.booleans(), WHOLE, NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ODD = st.one_of(
    PLAIN, st.just("none"), st.none(), st.dates(), st.times(), st.floats(), st.integers(), st.just(1 << 5000),
    st.text(max_size=5), st.just("\ud800"), st.binary(max_size=2),
)  # fmt: skip


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, in ranges that suit most checks."""
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
    given_keys = draw(st.lists(st.sampled_from(keys), unique_by=lambda key: key.name))
    chosen = {
        key.name: draw(st.one_of(*map(sections, ALGORITHMS.values())) if key.name == "algorithm" else values(key.hint))
        for key in given_keys
    }
    try:
        return section(**chosen)
    except ValueError:
        assume(False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(recipe=sections(Recipe))
def test_a_written_recipe_reads_as_itself(recipe):
    table = tomllib.loads(recipe_to_toml(recipe))
    assert table == recipe_to_table(recipe)
    assert recipe_from_table(table) == recipe


@settings(max_examples=200, deadline=None)
@given(table=st.dictionaries(TEXTS, PLAIN, max_size=4))
@example(table={"": {"a.b": {'"\\\n\x7f\x00\u2028\U0010ffff': '"\\\n\r\t\b\f\x7f\x00\x85\u2028\U0010ffff'}}})
@example(table={"a": [1e-06, 1e22, -0.0, 5e-324, 1.7976931348623157e308, {"b": [{}, []]}]})
def test_any_options_are_written_as_they_are(table):
    recipe = Recipe(environment=EnvironmentSettings(options=table))
    text = recipe_to_toml(recipe)
    assert recipe_from_table(tomllib.loads(text)) == recipe
    assert tomllib.loads(f"a = {toml(table)}") == {"a": table}
    assert all(line.isprintable() for line in text.split("\n"))


def read_or_refused(read: Callable[[], Recipe]) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, or the problems, of which there must be some. Any other error goes through."""
    try:
        return read(), ()
    except ConfigError as error:
        return Recipe(), error.problems or ("",)


NAMES = st.sampled_from(
    sorted({place.rpartition(".")[2] for place, _, _ in configuration._places(Recipe)} | {"iterations", "x", "a b"})
)
NESTED = st.recursive(ODD, lambda inner: st.dictionaries(NAMES | TEXTS, inner, max_size=4), max_leaves=8)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_table_is_read_or_refused_in_lines(data):
    table = recipe_to_table(Recipe())
    for section in data.draw(st.lists(st.sampled_from(sorted(table)), max_size=3, unique=True)):
        if isinstance(table[section], dict):
            table[section] |= data.draw(
                st.dictionaries(st.sampled_from(sorted(table[section])) | NAMES, NESTED, max_size=4)
            )
        else:
            table[section] = data.draw(NESTED)
    table |= data.draw(st.dictionaries(NAMES, NESTED, max_size=2))
    recipe, problems = read_or_refused(lambda: recipe_from_table(table))
    assert all(0 < len(line) < 800 and len(line.splitlines()) == 1 for line in problems)
    assert problems or recipe_from_table(recipe_to_table(recipe)) == recipe


PIECES = st.sampled_from(["[run]", "seed", "=", "1", "\n", ".", "'", '"""', "[[", "{", "é"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=30) | st.lists(PIECES).map("".join),
    key=st.text("ab.", max_size=5) | st.sampled_from(["run.seed", "model.name", "environment.options.x", "warm_start"]),
    value=st.text(max_size=10) | ODD.map(repr),
)  # fmt: skip
def test_any_file_and_override_is_read_or_refused(mine, text, key, value):
    mine.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    recipe, problems = read_or_refused(lambda: read_recipe(str(mine), [(key, value)]))
    assert all(line and len(line.splitlines()) == 1 for line in problems)
    assert problems or recipe_from_table(recipe_to_table(recipe)) == recipe


def test_types_in_words():
    assert in_words(int | str | None) == 'whole number or text or "none"'
    assert in_words(tuple[int, str]) == "list: whole number, text"
    assert in_words(tuple[int, ...]) == "list of whole numbers"
    assert in_words(Mapping[str, Any]) == "table"
    assert in_words(Literal["a"]) == '"a"'
    assert in_words(RunSettings | None) == 'table or "none"'


def test_a_recipe_is_not_changed_by_reading():
    table = {"environment": {"options": {"a": [1]}}}
    recipe = recipe_from_table(table)
    table["environment"]["options"]["a"].append(2)
    assert recipe.environment.options == {"a": [1]}
    assert replace(recipe, environment=EnvironmentSettings()) == Recipe()


def test_naming_another_algorithm_leaves_the_options_of_the_first_behind():
    recipe = read_recipe("tiny-pocket", [("algorithm.name", "grpo"), ("algorithm.minibatches", "2")])
    assert recipe.algorithm == GRPO(minibatches=2)
    assert read_recipe("tiny-pocket", [("algorithm.name", "seeupo")]) == read_recipe("tiny-pocket")
    with pytest.raises(ConfigError, match=r"algorithm\.order: there is no such key"):
        read_recipe("tiny-pocket", [("algorithm.name", "grpo"), ("algorithm.order", "reverse")])
