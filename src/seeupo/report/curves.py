"""The curves of a run and its maps of turns by iterations, from its records. What a run does not have is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seeupo.report.intervals import Measured, Spread
from seeupo.report.packing import rounded
from seeupo.runs.reader import ReadRun
from seeupo.utils.numbers import finite_number

Point = list[float | None]
"""Iteration, value, and the ends of its interval."""
Record = Mapping[str, Any]


def curves(run: ReadRun, measured: Mapping[int, Measured]) -> list[dict[str, Any]]:
    """Every curve that has a point."""
    records = {record["iteration"]: record for record in run.records.get("iteration", [])}
    held_out = held_out_summaries(run)
    k = k_of(run)

    def of(get: Callable[[Record], object]) -> list[Point]:
        return [[iteration, rounded(get(record)), None, None] for iteration, record in records.items()]

    def with_spread(key: str, get: Callable[[Measured], Spread | None]) -> list[Point]:
        points = []
        for iteration in sorted({*records, *measured}):
            found = get(measured[iteration]) if iteration in measured else None
            value = finite_number(records.get(iteration, {}).get(key))
            points.append(_point(iteration, value, found))
        return points

    return [
        *_curve("success", "Success", SUCCESS, "share", {
            "training": with_spread("success", lambda found: found.success),
            f"held out, avg@{k}": _estimates(held_out, f"avg@{k}"),
        }),
        *_curve("reward", "Reward", REWARD, "number", {
            "training": with_spread("reward_mean", lambda found: found.reward),
        }),
        *_curve("pass_at_k", f"pass@{k}", PASS, "share", {f"held out, pass@{k}": _estimates(held_out, f"pass@{k}")}),
        *_curve("entropy", "Entropy", ENTROPY, "number", {"training": of(lambda record: record.get("entropy"))}),
        *_curve("kl", "KL", KL, "number", {
            "from the policy that sampled": of(lambda record: of_turns(record, "kl")),
            "from the policy at the beginning": of(lambda record: of_turns(record, "kl_reference")),
        }),
        *_curve("grad_norm", "Gradient norm", GRADIENT, "number", {
            "training": of(lambda record: of_turns(record, "grad_norm")),
        }),
        *_curve("dead_groups", "Groups without a difference", DEAD, "share", {"training": of(_dead_share)}),
        *_curve("sampler_gap", "Gap between sampler and trainer", GAP, "log", {
            "training": of(lambda record: record.get("sampler_gap")),
        }),
        *_curve("tokens", "Tokens sampled", TOKENS, "tokens", {
            "training": of(lambda record: record.get("action_tokens")),
        }),
        *_curve("seconds", "Seconds by phase", SECONDS, "seconds", _seconds(run)),
    ]  # fmt: skip


SUCCESS = "Share of attempts with the full score in training; mean score on held-out tasks. Bands are 95% intervals."
REWARD = "Mean reward that was trained on; the band is a 95% interval over groups."
PASS = "Share of held-out tasks that at least one of k attempts solves, with a 95% interval over tasks."
ENTROPY = "Mean of -log p of the sampled tokens: how undecided the policy is. It should fall slowly and not vanish."
KL = "How far an iteration moved the policy, per token, on average over samples. Above 0.05 steps are too large."
GRADIENT = "Norm of the gradient before it is clipped, on average over steps. It should stay within a factor of ten."
DEAD = "Share of groups in which all rewards were equal: they teach nothing."
GAP = "Mean distance between the log-probs of sampler and trainer, which should be the same up to rounding."
TOKENS = "Tokens that an iteration sampled and trained on."
SECONDS = "Where the time of an iteration went; evaluations are shown at the iteration that they follow."


def _curve(key: str, title: str, text: str, unit: str, series: Mapping[str, Sequence[Point]]) -> list[dict[str, Any]]:
    shown = [
        {"name": name, "points": list(points)}
        for name, points in series.items()
        if any(point[1] is not None for point in points)
    ]
    return [{"key": key, "title": title, "help": text, "unit": unit, "series": shown}] if shown else []


def _point(iteration: int, value: float | None, found: Spread | None) -> Point:
    """The recorded value with the interval that was measured; the measured value where none was recorded."""
    if found is None:
        return [iteration, rounded(value), None, None]
    value = found.value if value is None else value
    low = None if found.low is None else min(found.low, value)
    high = None if found.high is None else max(found.high, value)
    return [iteration, rounded(value), rounded(low), rounded(high)]


def _estimates(summaries: Mapping[int, Record], name: str) -> list[Point]:
    return [
        [iteration, *(rounded(estimate.get(end)) for end in ("value", "low", "high"))]
        for iteration, summary in summaries.items()
        if isinstance(estimate := summary.get(name), Mapping)
    ]


def held_out_summaries(run: ReadRun) -> dict[int, Record]:
    """What evaluations came to: their files know best, and records stand in for files that are gone."""
    found: dict[int, Record] = {record["iteration"]: record for record in run.records.get("evaluation", [])}
    found.update({each.iteration: each.summary for each in run.evaluations})
    return dict(sorted(found.items()))


def k_of(run: ReadRun) -> int | None:
    """k of avg@k, or None if nothing says it."""
    if run.evaluations:
        return run.evaluations[-1].evaluation.plan.k
    for record in run.records.get("evaluation", []):
        if names := [match for name in record if (match := re.fullmatch(r"avg@([0-9]+)", name))]:
            return int(names[0][1])
    asked = run.setting("evaluation", "k")
    return asked if type(asked) is int else None


def turns_of(record: Record) -> list[Record]:
    """The turns of a record, in the order in which they were updated; none for algorithms that have no turns."""
    turns = record.get("turns")
    return [turn for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []


def of_turns(record: Record, key: str) -> float | None:
    """A metric as a mean over the turns, each as often as it has samples, or the algorithm's own."""
    found = [
        (value, finite_number(turn.get("used_samples")) or 1.0)
        for turn in turns_of(record)
        if (value := finite_number(turn.get(key))) is not None
    ]
    if found:
        return sum(value * samples for value, samples in found) / sum(samples for _, samples in found)
    overall = record.get("algorithm")
    return finite_number(overall.get(key)) if isinstance(overall, Mapping) else None


def _dead_share(record: Record) -> float | None:
    dead, groups = finite_number(record.get("dead_groups")), finite_number(record.get("groups"))
    return dead / groups if dead is not None and groups else None


def _seconds(run: ReadRun) -> dict[str, list[Point]]:
    """Per phase; rates and sums are no phases."""
    found: dict[str, list[Point]] = {}
    for record in run.records.get("iteration", []):
        timings = record.get("timings")
        for name, seconds in timings.items() if isinstance(timings, Mapping) else ():
            if name not in ("total", "tokens_per_second") and finite_number(seconds) is not None:
                found.setdefault(name, []).append([record["iteration"], rounded(seconds), None, None])
    for record in run.records.get("evaluation", []):
        timings = record.get("timings")
        seconds = timings.get("seconds") if isinstance(timings, Mapping) else None
        if finite_number(seconds) is not None:
            found.setdefault("evaluate", []).append([record["iteration"], rounded(seconds), None, None])
    return found


MAPS: tuple[tuple[str, str, str, float | None], ...] = (
    ("ratio_mean", "Ratio", "New probability over old after a turn's update, on average; 1 is no change.", 1.0),
    ("clip_fraction", "Clip fraction", "Share of a turn's samples that the clip holds back after its update.", None),
    (
        "carry_sd",
        "Spread of M",
        "Spread of M / A that a turn was updated with: 0 in the first one, then growing.",
        None,
    ),
    ("live_samples", "Live samples", "Attempts that got as far as this turn.", None),
    ("kl", "KL", "How far a turn's update moved the policy on its samples, per token.", None),
)
"""Key, title, help, and the middle of a diverging scale."""


MOST_TURNS = 1000
"""A turn beyond is a mistake in a file, and would make a map that nobody can look at."""


def turn_maps(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Every map that has a cell: iteration, turn from 1, value, and the turn's place in the order of updates from 1.

    The place is null where all turns are updated together.
    """
    kept = list(records)
    found = []
    for key, title, text, center in MAPS:
        cells = [
            [record["iteration"], turn["turn"] + 1, rounded(turn[key]), place if "carry_sd" in turn else None]
            for record in kept
            for place, turn in enumerate(turns_of(record), 1)
            if finite_number(turn.get(key)) is not None and turn.get("turn") in range(MOST_TURNS)
        ]
        scale = "sequential" if center is None else "diverging"
        if cells:
            found.append({"key": key, "title": title, "help": text, "scale": scale, "center": center, "cells": cells})
    return found
