import pytest

from seeupo.config.changes import CHANGEABLE, FIXED, LENGTH, Change, changes_text, check_changes, recipe_changes
from seeupo.config.loader import read_recipe, recipe_to_table
from seeupo.config.unknown_keys import hint_at
from seeupo.errors import TrainingError


def table(**overrides):
    pairs = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return recipe_to_table(read_recipe("tiny-pocket", pairs))


def test_changes_have_dotted_keys_and_both_values():
    before = table()
    after = table(optimizer__learning_rate="5e-5", environment__options__deceptive="0.5", algorithm__order="natural")
    assert recipe_changes(before, before) == []
    assert {(each.key, each.old, each.new) for each in recipe_changes(before, after)} == {
        ("optimizer.learning_rate", before["optimizer"]["learning_rate"], 5e-5),
        ("environment.options.deceptive", before["environment"]["options"].get("deceptive"), 0.5),
        ("algorithm.order", before["algorithm"]["order"], "natural"),
    }


def test_switching_a_section_off_changes_each_of_its_keys():
    changes = recipe_changes(table(), table(warm_start="none"))
    assert Change("warm_start", None, "none") in changes
    assert all(each.key.startswith("warm_start") for each in changes)


@pytest.mark.parametrize("key", [*CHANGEABLE, *FIXED])
def test_listed_keys_exist(key):
    assert hint_at(key.split(".")) is not None
    *section, last = key.split(".")
    found = table(algorithm__name="ppo")
    for name in section:
        found = found[name]
    assert last in found


@pytest.mark.parametrize(
    "key",
    [
        "run.seed", "model.name", "model.lora", "environment.name", "environment.options.turns", "agent.max_turns",
        "agent.temperature", "algorithm.name", "optimizer.moments", "optimizer.trainable", "critic.backbone",
        "evaluation.tasks", "evaluation.k", "warm_start.batches", "collection.tasks",
    ],
)  # fmt: skip
def test_changes_that_checkpoints_or_scores_depend_on_are_never_accepted(key):
    change = Change(key, 1, 2)
    assert not change.possible
    with pytest.raises(TrainingError, match=f"{key}: the run used 1, you asked for 2.*cannot change"):
        check_changes([change], typed=[key], accepted=True)


def test_other_changes_need_consent_unless_the_length_is_typed():
    rate, length = Change("optimizer.learning_rate", 1e-5, 5e-5), Change("run.iterations", 3, 6)
    check_changes([], typed=[], accepted=False)
    check_changes([length], typed=["run.iterations"], accepted=False)
    check_changes([length], typed=["run"], accepted=False)
    check_changes([rate, length], typed=[], accepted=True)
    with pytest.raises(TrainingError, match=r"rate: the run used 1e-05, you asked for 5e-05\. .*--accept-changes"):
        check_changes([rate, length], typed=["run.iterations", "optimizer.learning_rate"], accepted=False)
    with pytest.raises(TrainingError, match=r"iterations: the run used 3, you asked for 6 \(edited in recipe.toml\)"):
        check_changes([length], typed=[], accepted=False)
    assert all(Change(key, 1, 2).possible for key in LENGTH)


def test_recorded_changes_are_text_and_malformed_records_are_left_out():
    records = [
        {"iteration": 20, "key": "optimizer.learning_rate", "old": 1e-5, "new": 5e-5},
        {"iteration": 30, "key": "collect.equal_rounds", "old": None, "new": 1},
    ]
    assert changes_text([*records, None, {"key": "x"}, {"iteration": "3", "key": "x"}]) == (
        "after iteration 20: optimizer.learning_rate = 5e-05 instead of 1e-05; "
        "after iteration 30: collect.equal_rounds = 1 instead of (not set)"
    )
    assert changes_text([]) is changes_text(None) is changes_text({"key": 1}) is None
