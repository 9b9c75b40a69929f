"""The recipe reader: any file and any override is a recipe or a list of problems."""

from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, VALUES, Raw, damaged_text, mutated
from fuzz.scratch import scratch
from seeupo.config.loader import (
    read_recipe,
    recipe_from_table,
    recipe_names,
    recipe_text,
    recipe_to_table,
    recipe_to_toml,
)
from seeupo.config.schema import Recipe
from seeupo.config.unknown_keys import _recipe_keys
from seeupo.errors import ConfigError

TABLES = [recipe_to_table(read_recipe(name)) for name in recipe_names()]
FILES = [recipe_text(name) for name in recipe_names()] + [recipe_to_toml(Recipe())]
KEYS = sorted({key.path for key in _recipe_keys(Recipe)})


def check(read):
    """Check that a recipe is read and can be written, or rejected in printable lines of bounded length."""
    with nothing_executes():
        try:
            recipe = read()
        except ConfigError as error:
            assert error.problems  # noqa: PT017
            for line in error.problems:
                assert line.strip()
                assert len(line.splitlines()) == 1
                assert len(line) < 2000
            return
        assert recipe_from_table(recipe_to_table(recipe)) == recipe


def read_file(content, overrides=()):
    path = scratch() / "recipe.toml"
    path.write_bytes(content)
    return read_recipe(str(path), overrides)


@given(st.sampled_from(FILES).flatmap(damaged_text))
def test_damaged_files_are_read_or_rejected(content):
    check(lambda: read_file(content))


@given(st.sampled_from(TABLES).flatmap(lambda table: mutated(table, most=4)))
def test_mutated_tables_are_read_or_rejected(table):
    if isinstance(table, dict):
        check(lambda: recipe_from_table(_plain(table)))


def _plain(value):
    """Return a table with raw text as strings: a table holds values, not text."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.name if isinstance(value, Raw) else value


TOML_VALUES = st.sampled_from(
    [
        "1979-05-27T07:32:00Z", "07:32:00", "1979-05-27", "0x" + "f" * 5000, "0b" + "1" * 20_000, "9" * 5000, "1_000",
        "[" * 3000, "{a=" * 1000, "inf", "-nan", "1e400", '"""\n"""', "'''x'''", '"\\uD800"', '"\\U00110000"', "true",
        "{}", "[[]]", "[{a=1},{a=2}]", "1\nx = 2", "1\n[run]\nseed = 2", '"none"', "none", "0", "-1", "1.5", "[1, 2]",
    ]
)  # fmt: skip
OVERRIDES = st.lists(
    st.tuples(
        st.sampled_from(KEYS) | st.sampled_from(KEYS).map(lambda key: f"{key}.x") | ODD_TEXTS | TEXTS,
        TOML_VALUES | ODD_TEXTS | TEXTS | VALUES.map(str),
    ),
    max_size=3,
)


@given(st.sampled_from(FILES), OVERRIDES)
def test_any_override_is_read_or_rejected(text, overrides):
    check(lambda: read_file(text.encode(), overrides))


@given(st.lists(st.tuples(st.sampled_from(KEYS), TOML_VALUES), max_size=4))
def test_files_of_odd_values_are_read_or_rejected(lines):
    content = "\n".join(f"{key} = {value}" for key, value in lines)
    check(lambda: read_file(content.encode()))
