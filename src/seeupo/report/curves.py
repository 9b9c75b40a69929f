"""Curves over iterations, and heat maps of turns by iterations, from the metrics of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seeupo.report.intervals import IterationScores, MeanInterval
from seeupo.report.packing import rounded
from seeupo.runs.reader import StoredRun
from seeupo.utils.numbers import finite_number

Point = list[float | None]
"""Iteration, value, and low and high end of its interval."""
Record = Mapping[str, Any]


def curves(run: StoredRun, scores: Mapping[int, IterationScores]) -> list[dict[str, Any]]:
    """Return every curve that has a point; `scores` are those of each iteration, from its trajectories."""
    records = {record["iteration"]: record for record in run.records.get("iteration", [])}
    held_out = evaluation_summaries(run)
    k, steps = evaluation_k(run), run.setting("collect", "reward") == "score_and_steps"

    def recorded(value: Callable[[Record], object]) -> list[Point]:
        return [[iteration, rounded(value(record)), None, None] for iteration, record in records.items()]

    def with_interval(key: str, interval: Callable[[IterationScores], MeanInterval | None]) -> list[Point]:
        points = []
        for iteration in sorted({*records, *scores}):
            computed = interval(scores[iteration]) if iteration in scores else None
            points.append(_point(iteration, finite_number(records.get(iteration, {}).get(key)), computed))
        return points

    return [
        *_curve("success", "Success", SUCCESS, "share", {
            "training": with_interval("success", lambda computed: computed.success),
            f"held-out avg@{k}": _estimates(held_out, f"avg@{k}"),
        }),
        *_curve("reward", "Reward", STEP_REWARD if steps else REWARD, "number", {
            "training": with_interval("reward_mean", lambda computed: computed.reward),
        }),
        *_curve("pass_at_k", f"pass@{k}", PASS, "share", {f"held-out pass@{k}": _estimates(held_out, f"pass@{k}")}),
        *_curve("entropy", "Entropy", ENTROPY, "number", {"training": recorded(lambda record: record.get("entropy"))}),
        *_curve("kl", "KL", KL, "number", {
            "to the behavior policy": recorded(lambda record: turn_mean(record, "kl")),
            "to the reference policy": recorded(lambda record: turn_mean(record, "kl_reference")),
        }),
        *_curve("grad_norm", "Gradient norm", GRADIENT, "number", {
            "training": recorded(lambda record: turn_mean(record, "grad_norm")),
        }),
        *_curve("expected_gain", "Expected gain", GAIN, "number", {
            "all turns": [_gain(iteration, record.get("algorithm")) for iteration, record in records.items()],
        }),
        *_curve("dead_groups", "Groups with equal rewards", DEAD, "share", {"training": recorded(_dead_share)}),
        *_curve("sampler_gap", "Sampler-trainer gap", GAP, "log", {
            "training": recorded(lambda record: record.get("sampler_gap")),
        }),
        *_curve("tokens", "Sampled tokens", TOKENS, "tokens", {
            "training": recorded(lambda record: record.get("action_tokens")),
        }),
        *_curve("draft_acceptance", "Draft tokens kept", DRAFTS, "share", {
            "training": recorded(lambda record: record.get("draft_acceptance")),
        }),
        *_curve("seconds", "Time by phase", SECONDS, "seconds", phase_seconds(run)),
    ]  # fmt: skip


SUCCESS = "Fraction of training attempts with full score, and mean score on held-out tasks. Bands are 95% intervals."
REWARD = "Mean reward that was trained on. The band of scores is a 95% interval over groups."
STEP_REWARD = "Mean reward that was trained on: the score plus the rewards of the steps."
PASS = "Fraction of held-out tasks that at least one of k attempts solves. The band is a 95% interval over tasks."
ENTROPY = "Mean of -log p of the sampled tokens. It should fall slowly and not reach 0."
KL = "Mean KL divergence per token after an iteration's updates. Above 0.05, steps are too large."
GRADIENT = "Mean gradient norm before clipping. It should stay within a factor of ten."
GAIN = (
    "Change of the expected reward by an iteration's updates, estimated on the attempts that they were trained on, "
    "which is optimistic. The band is a 95% interval over tasks."
)
DEAD = "Fraction of groups in which all rewards are equal: their advantages are 0, so they train nothing."
GAP = "Mean difference between the log-probs of sampler and trainer, which should agree up to rounding."
TOKENS = "Number of tokens sampled in an iteration."
DRAFTS = "Fraction of the tokens drafted by speculation that were sampled. It rises as the policy gets more certain."
SECONDS = "Seconds per iteration. Evaluations are shown at the iteration that they follow."


def _curve(key: str, title: str, text: str, unit: str, series: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
    known = [
        {"name": name, "points": list(points)}
        for name, points in series.items()
        if any(point[1] is not None for point in points)
    ]
    return [{"key": key, "title": title, "help": text, "unit": unit, "series": known}] if known else []


def _point(iteration: int, value: float | None, computed: MeanInterval | None) -> Point:
    """Return the recorded value, or else the one computed from trajectories, with the computed interval."""
    if computed is None:
        return [iteration, rounded(value), None, None]
    value = computed.value if value is None else value
    low = None if computed.low is None else min(computed.low, value)
    high = None if computed.high is None else max(computed.high, value)
    return [iteration, rounded(value), rounded(low), rounded(high)]


def _estimates(summaries: Mapping[int, Record], name: str) -> list[Point]:
    return [
        [iteration, *(rounded(estimate.get(end)) for end in ("value", "low", "high"))]
        for iteration, summary in summaries.items()
        if isinstance(estimate := summary.get(name), Mapping)
    ]


def evaluation_summaries(run: StoredRun) -> dict[int, Record]:
    """Return the summary of each evaluation; metrics stand in for evaluation files that are missing."""
    summaries: dict[int, Record] = {record["iteration"]: record for record in run.records.get("evaluation", [])}
    summaries |= {evaluation.iteration: evaluation.summary for evaluation in run.evaluations}
    return dict(sorted(summaries.items()))


def evaluation_k(run: StoredRun) -> int | None:
    """Return k of avg@k and pass@k, or None if it is unknown."""
    if run.evaluations:
        return run.evaluations[-1].evaluation.plan.k
    setting = run.setting("evaluation", "k")
    return setting if type(setting) is int else None


def turn_records(record: Record) -> list[Record]:
    """Return the turns of a record in update order; algorithms that do not update by turn have none."""
    turns = record.get("turns")
    return [turn for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []


def turn_mean(record: Record, key: str) -> float | None:
    """Return the mean of a metric, weighted by the trained turns of each index, or the algorithm's own value."""
    weighted = [
        (float(value), max(0.0, finite_number(turn.get("used_turns")) or 1.0))
        for turn in turn_records(record)
        if (value := finite_number(turn.get(key))) is not None
    ]
    if total := sum(weight for _, weight in weighted):
        return sum(value * weight for value, weight in weighted) / total
    overall = record.get("algorithm")
    return finite_number(overall.get(key)) if isinstance(overall, Mapping) else None


def _gain(iteration: int, algorithm: object) -> Point:
    """Return the expected gain of all turns, with a normal interval."""
    values = algorithm if isinstance(algorithm, Mapping) else {}
    gain, error = (finite_number(values.get(key)) for key in ("expected_gain", "expected_gain_se"))
    if gain is None or error is None:
        return [iteration, rounded(gain), None, None]
    return [iteration, rounded(gain), rounded(gain - 1.96 * error), rounded(gain + 1.96 * error)]


def _dead_share(record: Record) -> float | None:
    dead, groups = finite_number(record.get("dead_groups")), finite_number(record.get("groups"))
    return dead / groups if dead is not None and groups else None


def phase_seconds(run: StoredRun) -> dict[str, list[Point]]:
    """Return the seconds of each phase; rates and totals are not phases."""
    phases: dict[str, list[Point]] = {}
    for kind in ("iteration", "evaluation"):
        for record in run.records.get(kind, []):
            timings = record.get("timings")
            for name, seconds in timings.items() if isinstance(timings, Mapping) else ():
                if name not in ("total", "tokens_per_second") and finite_number(seconds) is not None:
                    phase = name if kind == "iteration" else "evaluate"
                    phases.setdefault(phase, []).append([record["iteration"], rounded(seconds), None, None])
    return phases


TURN_MAPS: tuple[tuple[str, str, str, float | None], ...] = (
    ("ratio_mean", "Ratio", "Mean of new over old probability after a turn's update; 1 means no change.", 1.0),
    ("clip_fraction", "Clip fraction", "Fraction of actions whose clip is active after the turn's update.", None),
    (
        "carry_sd",
        "Spread of M",
        "Standard deviation of M / A at a turn's update (M: carried advantage): 0 in the turn updated first.",
        None,
    ),
    ("live_turns", "Live turns", "Number of attempts that reached this turn.", None),
    ("kl", "KL", "KL divergence per token that a turn's update caused.", None),
    (
        "expected_gain",
        "Expected gain",
        "Change of the expected reward by a turn's update, estimated on the attempts that it was trained on.",
        0.0,
    ),
    (
        "step_scale",
        "Kept step",
        "Fraction of a turn's step that the trust region kept; 0 if the turn keeps its old weights.",
        None,
    ),
    (
        "pool_kl",
        "KL of the trust region",
        "KL divergence from the policy that sampled, summed over a turn's tokens; the trust region limits it.",
        None,
    ),
)
"""Key, title, help, and center of a diverging color scale."""
MAX_TURNS = 1000
"""Higher turn numbers are errors in a file and would make the map unreadable."""


def turn_maps(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return every heat map that has a cell: iteration, turn from 1, value, and position in the update order from 1.

    The position is None if all turns are updated together.
    """
    records = list(records)
    maps = []
    for key, title, text, center in TURN_MAPS:
        cells = [
            [record["iteration"], turn["turn"] + 1, rounded(turn[key]), position if "carry_sd" in turn else None]
            for record in records
            for position, turn in enumerate(turn_records(record), 1)
            if finite_number(turn.get(key)) is not None and turn.get("turn") in range(MAX_TURNS)
        ]
        scale = "sequential" if center is None else "diverging"
        if cells:
            maps.append({"key": key, "title": title, "help": text, "scale": scale, "center": center, "cells": cells})
    return maps
