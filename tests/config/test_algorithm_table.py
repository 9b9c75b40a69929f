"""The table of the shipped algorithms is what their classes say, and reading it imports none of them."""

import itertools
import json
from pathlib import Path

import pytest

import seeupo.config
from seeupo.algorithms import ALGORITHMS
from seeupo.algorithms.table import algorithm_table
from seeupo.config.algorithms import AlgorithmSettings, load_class, options_class, shipped_algorithms
from seeupo.config.json_schema import section_schema
from seeupo.config.option_types import describe_type, hints_of
from seeupo.errors import ConfigError

TABLE = Path(seeupo.config.__file__).parent / "algorithms.json"


def test_table_is_up_to_date():
    fresh = TABLE.read_text(encoding="utf-8") == algorithm_table()
    assert fresh, "run: python -m seeupo.algorithms.table"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_table_entry_has_the_types_and_defaults_of_the_class(name):
    section, algorithm = options_class(name), ALGORITHMS[name]
    assert json.dumps(section_schema(section)) == json.dumps(section_schema(algorithm))
    types = [{key: describe_type(hint) for key, hint in hints_of(made_by).items()} for made_by in (section, algorithm)]
    assert types[0] == types[1]
    assert load_class(name) is algorithm
    assert AlgorithmSettings(name=name).build() == algorithm()
    assert AlgorithmSettings.from_algorithm(algorithm()) == AlgorithmSettings(name=name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_needs_are_known_without_the_class(name):
    options = [key for key in ("kl_coef", "kl_reward_coef") if key in AlgorithmSettings(name=name).options]
    for values in itertools.product((0.0, 0.1), repeat=len(options)):
        settings = AlgorithmSettings(name=name, options=dict(zip(options, values, strict=True)))
        assert settings.needs == settings.build().needs


def test_options_of_a_shipped_algorithm_are_checked_without_its_class():
    with pytest.raises(ConfigError, match=r"algorithm.gamma = 2: expected a number in \[0, 1\]"):
        AlgorithmSettings(name="ppo", options={"gamma": 2})
    assert set(shipped_algorithms()) == set(ALGORITHMS)
