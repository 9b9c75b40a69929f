"""Recipes of runs, and what identifies them."""

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from comparison.small_study import made_result, write_study
from seeupo.algorithms import GRPO, SeeUPO
from seeupo.comparison.planned_runs import Planner, differences, identity
from seeupo.comparison.result_store import FORMAT, PACKED, TRAINING_REVISION, Store, read_packed, write_result
from seeupo.comparison.study_file import read_study
from seeupo.errors import RunError


def planner(folder, **sections):
    return Planner(*read_study(str(write_study(folder, **sections))))


def test_arms_share_everything_except_their_own_settings(tmp_path):
    plan = planner(tmp_path, algorithm=SeeUPO(clip=None))
    one, other = plan.run("seeupo", 5, {}), plan.run("grpo", 5, {"optimizer.learning_rate": 0.5})
    assert one.recipe.algorithm.build() == SeeUPO()  # nothing is inherited
    assert other.recipe.algorithm.build() == GRPO(kl_coef=0.0)
    assert other.recipe.optimizer.learning_rate == 0.5
    assert replace(other.recipe, algorithm=SeeUPO(), optimizer=one.recipe.optimizer) == one.recipe
    assert one.warm_start == other.warm_start
    assert one.recipe.warm_start is None
    assert not one.recipe.evaluation.before
    assert dict(differences(other, plan.recipe)) == {
        "algorithm.name": "grpo",
        "algorithm.kl_coef": 0.0,
        "optimizer.learning_rate": 0.5,
    }


def test_differences_list_a_table_by_its_keys(tmp_path):
    plan = planner(tmp_path, model={"lora": None})
    settings = dict(differences(plan.run("grpo", 5, {"model.lora.rank": 4}), plan.recipe))
    assert settings["model.lora.rank"] == 4
    assert "model.lora" not in settings


def test_names_depend_on_settings_seed_and_warm_start(tmp_path):
    plan = planner(tmp_path)
    runs = [
        plan.run("seeupo", 5, {}),
        plan.run("seeupo", 6, {}),
        plan.run("seeupo", 5, {"optimizer.beta1": 0.5}),
        plan.run("grpo", 5, {}),
        planner(tmp_path, warm_start={"batches": 5}).run("seeupo", 5, {}),
    ]
    assert len({run.name for run in runs}) == 5
    assert plan.run("seeupo", 5, {"optimizer.learning_rate": 1e-3}).name == runs[0].name  # the recipe's own value


def test_warm_start_does_not_depend_on_the_algorithm(tmp_path):
    one = planner(tmp_path).warm_start(5)
    other = planner(tmp_path, algorithm=GRPO(), optimizer={"learning_rate": 0.5}, run={"iterations": 9}).warm_start(5)
    assert one.name == other.name
    assert one.recipe.run.iterations == 0


def test_identity_lists_only_values_that_are_not_defaults(tmp_path):
    settings = dict(identity(planner(tmp_path).run("grpo", 5, {}).recipe))
    assert settings["algorithm.name"] == "grpo"
    assert "algorithm.clip" not in settings


def test_results_count_if_revision_and_file_are_intact(tmp_path):
    plan, store = planner(tmp_path), Store(tmp_path / "out")
    run = plan.run("grpo", 5, {})
    assert store.result(run) is None
    written = replace(made_result([0.5, 0.25]), arm="grpo", seed=5)
    write_result(store.result_path(run), written)
    assert store.result(run) == written
    write_result(store.result_path(run), replace(written, revision=TRAINING_REVISION - 1))
    assert store.result(run) is None
    assert Store(tmp_path / "out", any_revision=True).result(run).revision == TRAINING_REVISION - 1
    for damaged in ("{", "[]", '{"format": "seeupo-compare-run"}', '{"format": "x"}', "[" * 100_000):
        store.result_path(run).write_text(damaged)
        assert Store(tmp_path / "out", any_revision=True).result(run) is None
    for values in (
        {"seconds": []},
        {"seconds": {"collect": "1"}},
        {"evaluations": [[1]]},
        {"evaluations": 5},
        {"rewards": [0.5, float("nan")]},
        {"rewards": [0.5]},
        {"rewards": [], "successes": []},
        {"optimizer_steps": "x"},
        {"diverged": 1},
    ):
        store.result_path(run).write_text(json.dumps({"format": FORMAT, **asdict(written), **values}))
        assert store.result(run) is None, values


def loose_and_packed(folder: Path) -> Store:
    """Return a store with a packed and a loose result of two runs."""
    plan, store = planner(folder), Store(folder / "out")
    for seed in (5, 6):
        result = replace(made_result([0.5, 0.25]), arm="grpo", seed=seed, tokens=seed)
        write_result(store.result_path(plan.run("grpo", seed, {})), result)
        if seed == 5:
            store.pack()
    return store


def test_packed_and_loose_results_are_read_alike(tmp_path):
    store = loose_and_packed(tmp_path)
    assert len(list((tmp_path / "out/runs").iterdir())) == 1
    runs = [planner(tmp_path).run("grpo", seed, {}) for seed in (5, 6)]
    assert [store.result(run).tokens for run in runs] == [5, 6]
    loose = Store(tmp_path / "out").result(runs[1])
    store.pack()
    assert list((tmp_path / "out/runs").iterdir()) == []
    again = Store(tmp_path / "out")
    assert [again.result(run).tokens for run in runs] == [5, 6]
    assert again.result(runs[1]) == loose
    write_result(again.result_path(runs[0]), replace(loose, tokens=7))  # a newer result
    assert again.result(runs[0]).tokens == 7


def test_packed_results_have_the_same_bytes_in_any_order(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = loose_and_packed(tmp_path / "a")
    one.pack()
    other, plan = Store(tmp_path / "b" / "out"), planner(tmp_path / "b")
    for seed in (6, 5):
        written = replace(made_result([0.5, 0.25]), arm="grpo", seed=seed, tokens=seed)
        write_result(other.result_path(plan.run("grpo", seed, {})), written)
    other.pack()
    assert (one.path / PACKED).read_bytes() == (other.path / PACKED).read_bytes()
    assert list(read_packed(one.path / PACKED)) == sorted(read_packed(one.path / PACKED))


def test_packed_results_of_another_study_are_read_and_not_packed_again(tmp_path):
    store = loose_and_packed(tmp_path)
    (store.path / PACKED).rename(store.path / "results-other.jsonl.gz")
    runs = [planner(tmp_path).run("grpo", seed, {}) for seed in (5, 6)]
    again = Store(store.path)
    again.pack()
    assert [again.result(run).tokens for run in runs] == [5, 6]
    assert len(read_packed(store.path / PACKED)) == 1


def test_damaged_results_are_not_packed(tmp_path):
    store = loose_and_packed(tmp_path)
    (path,) = (tmp_path / "out/runs").iterdir()
    path.write_text("{")
    before = (store.path / PACKED).read_bytes()
    store.pack()
    assert path.exists()
    assert (store.path / PACKED).read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "text", "nested", "unnamed"])
def test_a_damaged_file_of_packed_results_is_an_error(tmp_path, damage):
    store = loose_and_packed(tmp_path)
    path = store.path / PACKED
    content = {"cut": path.read_bytes()[:-20], "text": b"results", "nested": gzip.compress(b"[" * 100_000)}
    path.write_bytes(content.get(damage, gzip.compress(b'{"format": "seeupo-compare-run"}\n')))
    with pytest.raises(RunError, match="is damaged"):
        Store(store.path).result(planner(tmp_path).run("grpo", 5, {}))
