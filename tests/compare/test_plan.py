"""Recipes of runs, and what identifies them."""

from dataclasses import replace

from compare.small_study import made_result, write_study
from seeupo.algorithms import GRPO, SeeUPO
from seeupo.compare.planned_runs import Planner, differences, identity
from seeupo.compare.result_store import TRAINING_REVISION, Store, read_result, write_result
from seeupo.compare.study_file import read_study


def planner(folder, **sections):
    return Planner(*read_study(str(write_study(folder, **sections))))


def test_arms_share_everything_except_their_own_settings(tmp_path):
    plan = planner(tmp_path, algorithm=SeeUPO(clip=None))
    one, other = plan.run("seeupo", 5, {}), plan.run("grpo", 5, {"optimizer.learning_rate": 0.5})
    assert one.recipe.algorithm == SeeUPO()  # nothing is inherited
    assert other.recipe.algorithm == GRPO(kl_coef=0.0)
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
    found = dict(differences(plan.run("grpo", 5, {"model.lora.rank": 4}), plan.recipe))
    assert found["model.lora.rank"] == 4
    assert "model.lora" not in found


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
    found = dict(identity(planner(tmp_path).run("grpo", 5, {}).recipe))
    assert found["algorithm.name"] == "grpo"
    assert "algorithm.clip" not in found


def test_results_count_if_code_and_file_are_intact(tmp_path):
    plan, store = planner(tmp_path), Store(tmp_path / "out")
    run = plan.run("grpo", 5, {})
    assert store.result(run) is None
    written = replace(made_result([0.5, 0.25]), arm="grpo", seed=5, code="any")
    write_result(store.result_path(run), written)
    assert store.result(run) == written
    write_result(store.result_path(run), replace(written, revision=TRAINING_REVISION - 1))
    assert store.result(run) is None
    assert Store(tmp_path / "out", any_revision=True).result(run) == read_result(store.result_path(run))
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
        write_result(store.result_path(run), replace(written, **values))
        assert store.result(run) is None, values
