"""Describe a comparison in sentences: its result, its settings and its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from seeupo.comparison.estimate import duration
from seeupo.config.toml import format_value
from seeupo.core.statistics import format_estimate
from seeupo.utils.text import counted

QUANTITIES = {
    "optimizer_steps": "optimizer steps",
    "tokens": "tokens through the policy",
    "seconds": "seconds of training",
}

TIE = 0.001
"""Difference of mean scores below which tuning has not told two settings apart."""


def summary(table: Mapping[str, Any]) -> str:
    """Return the verdicts on the primary metric."""
    verdicts = [(row["arm"], row["metrics"][table["primary"]]["verdict"]) for row in table["comparisons"]]
    parts = [
        f"{', '.join(arm for arm, other in verdicts if other == verdict)}: {verdict.lower()}"
        for verdict in dict.fromkeys(other for _, other in verdicts)
    ]
    return f"reward AUC against {table['reference']}: {'; '.join(parts)}"


def setting_sentences(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was compared, how it was matched and tuned, and what limits the comparison."""
    yield (
        f"{counted(len(table['arms']), 'arm')} x {counted(len(table['seeds']), 'seed')} of {table['recipe']} "
        f"({table['model']} on {table['environment']}): {table['iterations']} iterations, {table['trajectories']:,} "
        "trajectories per run. All arms of a seed start from the same policy and draw the same tasks."
    )
    if len(table["seeds"]) < len(table["planned_seeds"]):
        yield f"Not finished: these are {len(table['seeds'])} of {len(table['planned_seeds'])} seeds."
    if not table["held_out"]:
        yield "Scores are those of the training tasks."
    if table["start"] is not None:
        score = f"{'Held-out avg' if table['held_out'] else 'avg'}@{table['k']}"
        yield f"{score} before training: {format_estimate(table['start'])}."
    match = table["match"]
    if match["quantity"] == "none":
        yield "Nothing is matched except trajectories: the arms differ in optimizer steps, tokens and time."
    else:
        off = max(abs(share - 1) for share in match["spent"].values())
        yield (
            f"Matched: {QUANTITIES[match['quantity']]}, {match['target']:,.0f} per run as calibrated; the arms are "
            f"within {off:.0%} of it."
        )
    if table["grid"]:
        yield from tuning_sentences(table)
    time = table["time"]
    spent = duration(3600 * time["hours"])
    yield (
        f"The {time['runs']} runs, warm starts and tuning included, took {spent} together, with "
        f"{counted(time['threads'], 'thread')} each."
    )
    yield from _mixture_sentences(table)


def tuning_sentences(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield how arms were tuned, and whether the grid may have been too small."""
    tried = "; ".join(f"{key} in {format_value(values)}" for key, values in table["grid"].items())
    yield (
        f"Tuned per arm on {tried}, with {counted(len(table['tuning_seeds']), 'seed')} that "
        f"{'is' if len(table['tuning_seeds']) == 1 else 'are'} not reported."
    )
    ends: dict[str, list[str]] = {}
    for arm in table["arms"]:
        for key in arm["at_the_end_of_the_grid"]:
            ends.setdefault(key, []).append(arm["name"])
    for key, arms in ends.items():
        yield f"The best {key} is at the end of the grid, so that a better value may be beyond it: {', '.join(arms)}."
    if tied := [arm["name"] for arm in table["arms"] if _is_tied(arm)]:
        yield f"The best two settings differ by less than {TIE} on the tuning seeds: {', '.join(tied)}."


def _mixture_sentences(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether the runs were put together from different weights or revisions."""
    if table["different_starts"]:
        seeds = ", ".join(map(str, table["different_starts"]))
        yield f"Warm starts were computed again, with other weights: not all arms started alike with the seeds {seeds}."
    if table["revisions"] != [table["versions"]["revision"]]:
        revisions = ", ".join(map(str, table["revisions"]))
        yield f"Runs of other training revisions were accepted: {revisions} instead of {table['versions']['revision']}."


def _is_tied(arm: Mapping[str, Any]) -> bool:
    """Return whether the two best settings of an arm's tuning have nearly the same mean score."""
    best = sorted((fmean(tried["scores"]) for tried in arm["tried"]), reverse=True)
    return len(best) > 1 and best[0] - best[1] < TIE


def p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"
