"""The tables on the result pages are generated from the result files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from seeupo.comparison.markdown import markdown, overview
from seeupo.core.run_statistics import mean_of_runs, p_value
from seeupo.core.statistics import format_estimate
from seeupo.evaluation.results import Evaluation, compare
from studies import bfcl_results, reliability

RESULTS = Path(__file__).parents[2] / "studies/results"
COMPARISONS = sorted(RESULTS.glob("*/comparison.json"))


def page(name):
    return (RESULTS / name).read_text(encoding="utf-8")


def read(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", COMPARISONS, ids=lambda file: file.parent.name)
def test_overviews_of_studies(file):
    table = json.loads(file.read_text())
    assert "\n".join(overview(table)) in page("studies.md")
    assert file.with_suffix(".md").read_text() == "\n".join(markdown(table)) + "\n"


def reward_aucs(study):
    """Return the reward AUC of each arm of a study: its interquartile mean, and the value of each run."""
    metrics = {arm["name"]: arm["metrics"]["reward_auc"] for arm in read(f"{study}/comparison.json")["arms"]}
    return {arm: (metric["value"], metric["runs"]) for arm, metric in metrics.items()}


def test_the_answer_has_the_values_of_the_studies():
    normal, deceptive = reward_aucs("main-normal"), reward_aucs("main-deceptive")
    for label, arm in (("PPO", "ppo"), ("GRPO", "grpo"), ("GSPO", "gspo"), ("SeeUPO", "seeupo")):
        (row,) = re.findall(rf"^\| {label} \|.*$", page("README.md"), flags=re.MULTILINE)
        assert re.findall(r"0\.\d{3}", row)[:2] == [f"{normal[arm][0]:.3f}", f"{deceptive[arm][0]:.3f}"]


EFFECTS_OF_M = {
    "deceptive, product ratios, own rates, thirty seeds": ("carry", "seeupo", "no-carry"),
    "deceptive, product ratios, own rates": ("control-product", "seeupo-product", "no-carry-product"),
    "deceptive, product ratios, rate of M": ("credit", "seeupo", "no-carry"),
    "deceptive, product ratios, one rate": ("seeupo-ablations", "product", "product-no-carry"),
    "deceptive, product ratios, one rate, upper layer": ("seeupo-ablations", "upper-layer", "upper-layer-no-carry"),
    "deceptive, length-normalized, own rates": ("control", "seeupo", "no-carry"),
    "deceptive, length-normalized, one rate": ("seeupo-ablations", "seeupo", "no-carry"),
    "normal, 3 calls": ("turns-3", "seeupo", "no-carry"),
    "normal, 5 calls": ("turns-5", "seeupo", "no-carry"),
    "normal, 8 calls": ("turns-8", "seeupo", "no-carry"),
    "normal, early decision": ("position-early", "seeupo", "no-carry"),
    "normal, late decision": ("position-late", "seeupo", "no-carry"),
    "textworld, own rates": ("compare-textworld", "seeupo", "no-carry"),
}


@pytest.mark.parametrize("label", EFFECTS_OF_M)
def test_effects_of_m(label):
    study, on, off = EFFECTS_OF_M[label]
    runs = {arm: np.array(values) for arm, (_, values) in reward_aucs(study).items()}
    effect = format_estimate(mean_of_runs(runs[on] - runs[off])._asdict(), signed=True)
    above = f"{(runs[on] > runs[off]).sum()} of {len(runs[on])}"
    assert f"| {label} | {effect} | {above} | {p_value(runs[on], runs[off]):.3f} |" in page("README.md")


def test_runs_of_the_default_recipe():
    assert "\n".join(list(reliability.markdown(read("tiny-pocket.json")))[2:]) in page("recipes.md")


def evaluation(name):
    return Evaluation.read(RESULTS / f"{name}.json")


@pytest.mark.parametrize("folder", ["smollm2-bfcl", "smollm2-bfcl/trading-warm-start", "smollm2-bfcl/end-at-mistake"])
def test_tables_of_bfcl(folder):
    assert "\n".join(bfcl_results.table(read(f"{folder}/results.json"))) in page("recipes.md")


def test_stages_of_bfcl_have_the_scores_of_their_evaluations():
    for name, stage in read("smollm2-bfcl/results.json").items():
        result = evaluation(f"smollm2-bfcl/{name.replace(' ', '-')}")
        assert {score: stage["scores"][score] for score in bfcl_results.SCORES} == {
            score: result.summary()[score] for score in bfcl_results.SCORES
        }
        if name != "warm start":
            difference = compare(evaluation("smollm2-bfcl/warm-start"), result)
            assert all(stage["difference"][score] == difference[score] for score in bfcl_results.SCORES)


@pytest.mark.parametrize(
    ("kind", "k", "label"),
    [("training-tasks", 4, "training tasks, avg@4"), ("greedy", 1, "held-out tasks, greedy")],
)
def test_scores_of_bfcl_on_training_tasks_and_without_sampling(kind, k, label):
    runs = [evaluation(f"smollm2-bfcl/{kind}-{name}") for name in ("warm-start", "seeupo", "grpo")]
    cells = [format_estimate(run.summary()[f"avg@{k}"]) for run in runs]
    assert bfcl_results.row(label, cells) in page("recipes.md")
    differences = [format_estimate(compare(runs[0], run)[f"avg@{k}"], signed=True) for run in runs[1:]]
    assert bfcl_results.row(f"{label}, difference to the warm start", ["", *differences]) in page("recipes.md")


@pytest.mark.parametrize("seed", [1, 2])
def test_scores_with_a_pretrained_model(seed):
    names = (f"compare-smollm2-pocket/evaluations/{name}-{seed}" for name in ("warm-start", "seeupo", "grpo"))
    runs = [evaluation(name) for name in names]
    cells = [format_estimate(run.summary()["avg@4"]) for run in runs]
    difference = format_estimate(compare(*runs[1:])["avg@4"], signed=True)
    assert f"| {seed} | {' | '.join(cells)} | {difference} |" in page("recipes.md")


def test_trials_of_textworld():
    trials = read("textworld/trials.json")
    assert len(trials) == 8
    for trial in trials:
        success = trial["success"]
        dead_groups = np.mean(trial["dead_groups"]) / trial["groups"]
        scores = f"{np.mean(success[:5]):.2f}, {np.mean(success[-5:]):.2f}"
        entropy = trial["entropy"]
        assert f"| {scores} | {dead_groups:.0%} | {entropy[0]:.1f}, {entropy[-1]:.1f} |" in page("recipes.md")
