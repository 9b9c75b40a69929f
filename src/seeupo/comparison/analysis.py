"""Tables and curves of a comparison, from the results of its runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

import seeupo
from seeupo.comparison.comparison import Comparison, padded_rewards, reward_auc
from seeupo.comparison.matching import amount_of
from seeupo.comparison.planned_runs import differences
from seeupo.comparison.result_store import TRAINING_REVISION, RunResult
from seeupo.comparison.sentences import setting_sentences, summary
from seeupo.core.run_statistics import (
    Interval,
    holm,
    interquartile_mean,
    mean_of_runs,
    p_value,
    paired_difference,
    probability_of_improvement,
)

FORMAT, VERSION = "seeupo-comparison", 1
SMOOTHING = 5
"""Number of iterations over which rewards are averaged before drops are measured."""
COLLAPSED = 0.5
"""A run has collapsed if its smoothed reward ends below this share of its best."""
SIGNIFICANT = 0.05
MIN_SEEDS = 3
"""Number of seeds from which differences get a verdict."""
STATISTICS = (
    "Intervals are 95% confidence intervals over seeds, from seeupo.core.run_statistics: Student's t for means and "
    "paired differences, winsorized t for interquartile means. p-values are adjusted for the number of arms by Holm's "
    "method; intervals are not. docs/guides/compare.md has their measured coverage."
)
Score = Callable[[RunResult, int], float]


def success_auc(result: RunResult, iterations: int) -> float:
    return sum(result.successes) / iterations


def final_score(result: RunResult, iterations: int) -> float:
    """Return avg@k after the last iteration; 0 if the run did not reach it."""
    return 0.0 if result.diverged is not None or not result.evaluations else float(result.evaluations[-1][1])


METRICS: Mapping[str, tuple[str, str, Score]] = {
    "reward_auc": ("Reward AUC", "mean training reward over all iterations; the primary metric", reward_auc),
    "final_score": ("Final score", "avg@k on the test split after training", final_score),
    "success_auc": ("Success AUC", "mean share of solved training episodes over all iterations", success_auc),
}


def analyze(comparison: Comparison, name: str) -> dict[str, Any]:
    """Return everything that is reported about a comparison, as JSON: about the seeds that are finished."""
    study, recipe = comparison.study, comparison.recipe
    seeds = comparison.finished_seeds()
    results = {arm: [comparison.finished(comparison.reported(arm, seed)) for seed in seeds] for arm in study.arms}
    arms = []
    for arm, arm_results in results.items():
        tuning = comparison.tuned(arm)
        arms.append(
            {
                "name": arm,
                "settings": [[key, value] for key, value in settings_of(comparison, arm).items()],
                "tuned": dict(tuning.best),
                "at_the_end_of_the_grid": tuning.at_the_end(comparison.planner.values),
                "tried": [{"settings": dict(settings), "scores": list(scores)} for settings, scores in tuning.tried],
                "matched": dict(comparison.matched(arm)),
                **arm_summary(arm_results, comparison.iterations),
            }
        )
    table = {
        "format": FORMAT,
        "version": VERSION,
        "study": name,
        "recipe": study.recipe,
        "model": recipe.model.name,
        "environment": recipe.environment.name,
        "iterations": comparison.iterations,
        "trajectories": comparison.iterations * recipe.collect.tasks * recipe.collect.group_size,
        "k": recipe.evaluation.k,
        "held_out": recipe.environment.test_split != recipe.environment.train_split,
        "seeds": seeds,
        "planned_seeds": list(study.seeds),
        "tuning_seeds": list(study.tuning_seeds),
        "grid": comparison.planner.values,
        "match": match_summary(comparison, results),
        "metrics": {key: {"title": title, "help": text} for key, (title, text, _) in METRICS.items()},
        "primary": "reward_auc",
        "reference": next(iter(results)),
        "arms": arms,
        "start": _start(comparison, seeds),
        "time": _time(comparison),
        "comparisons": pairwise_differences(results, comparison.iterations),
        "statistics": STATISTICS,
        "versions": {"seeupo": seeupo.__version__, "revision": TRAINING_REVISION},
        "different_starts": different_starts(results, seeds),
        "revisions": sorted({result.revision for arm_results in results.values() for result in arm_results}),
    }
    return {**table, "summary": summary(table), "sentences": list(setting_sentences(table))}


def different_starts(results: Mapping[str, Sequence[RunResult]], seeds: Sequence[int]) -> list[int]:
    """Return the seeds whose arms did not start from the same weights; results of older versions do not say."""
    by_seed = zip(seeds, zip(*results.values(), strict=True), strict=True)
    return [seed for seed, seed_results in by_seed if len({result.start for result in seed_results} - {""}) > 1]


def settings_of(comparison: Comparison, arm: str) -> dict[str, Any]:
    """Return the settings of an arm that are its own: those that differ from the recipe, were tuned, or matched."""
    run = comparison.reported(arm, comparison.study.seeds[0])
    return {**dict(differences(run, comparison.recipe)), **run.settings}


def arm_summary(results: Sequence[RunResult], iterations: int) -> dict[str, Any]:
    """Return scores, stability, cost and curves of an arm's runs."""
    bounded = all(0 <= reward <= 1 for result in results for reward in result.rewards)  # not with shaped rewards
    rewards = [padded_rewards(result, iterations) for result in results]
    drops = np.array([largest_drop(run_rewards) for run_rewards in rewards])
    return {
        "metrics": {
            key: {
                **_interval(
                    interquartile_mean(values := _scores(results, score, iterations)),
                    bounded=bounded or key != "reward_auc",
                ),
                "mean": _interval(mean_of_runs(values), bounded=bounded or key != "reward_auc"),
                "runs": values.tolist(),
            }
            for key, (_, _, score) in METRICS.items()
        },
        "stability": {
            "largest_drop": _interval(interquartile_mean(drops), bounded=bounded),
            "worst_drop": float(drops.max()),
            "collapsed": sum(map(has_collapsed, rewards)),
            "diverged": sum(result.diverged is not None for result in results),
        },
        "cost": {
            "optimizer_steps": fmean([result.optimizer_steps for result in results]),
            "tokens": fmean([result.tokens for result in results]),
            "seconds": fmean([result.training_seconds for result in results]),
        },
        "reward_curve": curve([list(enumerate(run_rewards, 1)) for run_rewards in rewards], bounded=bounded),
        "score_curve": curve(evaluated(results), bounded=True),
    }


def pairwise_differences(results: Mapping[str, Sequence[RunResult]], iterations: int) -> list[dict[str, Any]]:
    """Return each arm's paired differences from the first one; p-values are adjusted within each metric."""
    reference, *others = results
    rows: list[dict[str, Any]] = [{"arm": arm, "reference": reference, "metrics": {}} for arm in others]
    for key, (_, _, score) in METRICS.items():
        base = _scores(results[reference], score, iterations)
        values = [_scores(results[arm], score, iterations) for arm in others]
        adjusted = holm([float(p_value(scores, base)) for scores in values])
        for row, scores, p in zip(rows, values, adjusted, strict=True):
            difference = _interval(paired_difference(scores, base))
            row["metrics"][key] = {
                "difference": difference,
                "p": p,
                "verdict": verdict(difference["value"], p, len(base)),
                "probability_of_improvement": _interval(probability_of_improvement(scores, base)),
                "seeds_above": int((scores > base).sum()),
            }
    return rows


def verdict(difference: float, p: float, seeds: int) -> str:
    """Return the verdict on an arm's difference from the reference."""
    if seeds < MIN_SEEDS:
        return "Inconclusive"
    if p >= SIGNIFICANT:
        return "No significant difference"
    return "Better" if difference > 0 else "Worse"


def match_summary(comparison: Comparison, results: Mapping[str, Sequence[RunResult]]) -> dict[str, Any]:
    """Return what was matched, the target of a run, and what the arms have spent relative to it."""
    match = comparison.study.match
    if match == "none":
        return {"quantity": match, "target": None, "spent": {}}
    target = comparison.target * comparison.iterations
    spent = {arm: fmean([amount_of(result, match) for result in arm_results]) for arm, arm_results in results.items()}
    return {"quantity": match, "target": target, "spent": {arm: amount / target for arm, amount in spent.items()}}


def smoothed(rewards: Sequence[float]) -> list[float]:
    """Return the means over windows of a few iterations."""
    size = min(SMOOTHING, len(rewards))
    return [math.fsum(rewards[at : at + size]) / size for at in range(len(rewards) - size + 1)] if size else []


def largest_drop(rewards: Sequence[float]) -> float:
    """Return how far the smoothed reward fell below its best so far, at most."""
    best, drop = -math.inf, 0.0
    for value in smoothed(rewards):
        best = max(best, value)
        drop = max(drop, best - value)
    return drop


def has_collapsed(rewards: Sequence[float]) -> bool:
    """Return whether the smoothed reward ended below half of its best; negative rewards are counted from the lowest."""
    values = smoothed(rewards)
    lowest = min((0.0, *values))
    best = max((lowest, *values)) - lowest
    return best > 0 and values[-1] - lowest < COLLAPSED * best


def evaluated(results: Sequence[RunResult]) -> list[list[tuple[int, float]]]:
    """Return the evaluations of each run; a run that diverged has 0 in those that it did not reach."""
    iterations = {int(iteration) for result in results for iteration, _ in result.evaluations}
    runs = []
    for result in results:
        scores = {int(iteration): score for iteration, score in result.evaluations}
        if result.diverged is not None:
            scores = dict.fromkeys(iterations, 0.0) | scores
        runs.append(sorted(scores.items()))
    return runs


def curve(runs: Sequence[Sequence[tuple[int, float]]], *, bounded: bool) -> list[list[float | None]]:
    """Return [iteration, mean, low, high] of the iterations that all runs have."""
    if not runs or not all(runs):
        return []
    common = sorted(set.intersection(*({iteration for iteration, _ in run} for run in runs)))
    values = np.array([[dict(run)[iteration] for iteration in common] for run in runs]).T
    if not common:
        return []
    rows = (_interval(Interval(*ends), bounded=bounded) for ends in zip(*mean_of_runs(values), strict=True))
    return [[iteration, *row.values()] for iteration, row in zip(common, rows, strict=True)]


def _start(comparison: Comparison, seeds: Sequence[int]) -> dict[str, Any] | None:
    """Return the evaluation score of the warm starts."""
    starts = [comparison.planner.warm_start(seed) for seed in seeds]
    results = [comparison.store.result(start) for start in starts if start is not None]
    scores = np.array([result.evaluations[-1][1] for result in results if result is not None and result.evaluations])
    return {**_interval(interquartile_mean(scores), bounded=True), "runs": scores.tolist()} if len(scores) else None


def _time(comparison: Comparison) -> dict[str, float]:
    """Return the number of finished runs, warm starts and tuning included, and the hours that they took together."""
    runs = {run.name: comparison.result(run) for _, planned in comparison.phases() for run in planned}
    seconds = [result.total_seconds for result in runs.values() if result is not None]
    return {"runs": len(seconds), "hours": math.fsum(seconds) / 3600, "threads": comparison.study.threads}


def _scores(results: Sequence[RunResult], score: Score, iterations: int) -> Any:
    return np.array([score(result, iterations) for result in results])


def _interval(interval: Interval, *, bounded: bool = False) -> dict[str, Any]:
    """Return an interval as JSON; `bounded` if the value is in [0, 1] by definition."""
    ends = {name: _number(end) for name, end in zip(("value", "low", "high"), interval, strict=True)}
    if bounded:
        ends |= {name: min(1.0, max(0.0, end)) for name, end in ends.items() if end is not None}
    return ends


def _number(value: Any) -> float | None:
    """Return a number, or None for one that JSON cannot hold."""
    return float(value) if math.isfinite(value) else None
