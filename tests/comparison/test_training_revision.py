"""The training revision: what runs compute is the same as long as it is the same."""

import json
from pathlib import Path

import pytest

from comparison.training_behavior import behavior

STORED = json.loads(Path(__file__).with_name("training_behavior.json").read_text())
HINT = "If results are meant to change, raise TRAINING_REVISION and write the file again (see training_behavior.py)."


@pytest.fixture(scope="module")
def current():
    return behavior()


def test_the_file_is_that_of_the_current_revision(current):
    assert current["revision"] == STORED["revision"], "Write training_behavior.json again."


@pytest.mark.parametrize("name", STORED["defaults"])
def test_defaults_are_those_of_the_revision(current, name):
    for key, value in STORED["defaults"][name].items():  # there may be new options
        assert current["defaults"][name].get(key, "removed") == value, f"default of {key}. {HINT}"


@pytest.mark.parametrize("name", STORED["updates"])
def test_updates_are_those_of_the_revision(current, name):
    assert current["updates"][name] == pytest.approx(STORED["updates"][name], abs=2e-6), HINT


def test_tasks_and_demonstrations_are_those_of_the_revision(current):
    assert current["pocket"] == STORED["pocket"], HINT
    assert current["seeds"] == STORED["seeds"], HINT
