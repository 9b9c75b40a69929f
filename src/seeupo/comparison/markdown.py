"""Write a comparison as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seeupo.comparison.sentences import p_text
from seeupo.config.toml import format_value
from seeupo.core.statistics import format_estimate
from seeupo.utils.text import one_line


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a comparison's page: scores, runs, differences, stability, cost and tuning."""
    yield f"# {table['study']}: {table['summary']}"
    yield ""
    yield from (f"- {sentence}" for sentence in table["sentences"])
    yield from ("", "## Overview", "", *overview(table))
    primary = table["metrics"][table["primary"]]["title"]
    yield from _section(
        "Scores: interquartile means, and the mean of all runs",
        ["arm", *_titles(table), f"{primary}, mean"],
        (_score_row(arm, table) for arm in table["arms"]),
    )
    yield from _section(
        f"{primary} of each run", ["arm", *(f"seed {seed}" for seed in table["seeds"])], _run_rows(table)
    )
    for key, metric in table["metrics"].items():
        yield from _section(
            f"{metric['title']}: paired difference from {table['reference']}"
            + (" (primary)" if key == table["primary"] else ""),
            ["arm", "difference", "p (Holm)", "seeds above", "probability of improvement", "verdict"],
            (_difference_row(row, row["metrics"][key], table) for row in table["comparisons"]),
        )
    yield from _section(
        "Stability", ["arm", "largest drop", "worst run", "collapsed", "diverged"], map(_stability_row, table["arms"])
    )
    yield from _section(
        "Cost of a run",
        ["arm", "optimizer steps", "tokens", "seconds", *(["of the target"] if table["match"]["spent"] else [])],
        (_cost_row(arm, table) for arm in table["arms"]),
    )
    yield from _section(
        "Settings", ["arm", "settings"], ([arm["name"], settings_text(arm["settings"])] for arm in table["arms"])
    )
    if table["grid"]:
        yield from _section("Tuning", ["arm", "settings", "reward AUC per tuning seed", "chosen"], _tuning_rows(table))
    yield ""
    yield table["statistics"]


def overview(table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with the main figures of each arm."""
    primary = table["primary"]
    title = table["metrics"][primary]["title"]
    head = ["arm", title, f"against {table['reference']}", "verdict", "final score"]
    metrics = {row["arm"]: row["metrics"][primary] for row in table["comparisons"]}
    against = {arm: [format_estimate(row["difference"], signed=True), row["verdict"]] for arm, row in metrics.items()}
    rows = (
        [
            arm["name"],
            format_estimate(arm["metrics"][primary]),
            *against.get(arm["name"], ["", ""]),
            format_estimate(arm["metrics"]["final_score"]),
            f"{arm['cost']['optimizer_steps']:,.0f}",
            f"{arm['cost']['tokens'] / 1e6:.2f}",
            f"{arm['cost']['seconds']:.0f}",
        ]
        for arm in table["arms"]
    )
    return list(_table([*head, "optimizer steps", "million tokens", "seconds"], rows))


def settings_text(settings: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{key} = {format_value(value)}" for key, value in settings)


def _titles(table: Mapping[str, Any]) -> list[str]:
    marks = {table["primary"]: " (primary)"}
    return [f"{metric['title']}{marks.get(key, '')}" for key, metric in table["metrics"].items()]


def _score_row(arm: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    scores = (format_estimate(arm["metrics"][key]) for key in table["metrics"])
    return [arm["name"], *scores, format_estimate(arm["metrics"][table["primary"]]["mean"])]


def _run_rows(table: Mapping[str, Any]) -> Iterator[list[str]]:
    for arm in table["arms"]:
        yield [arm["name"], *(f"{value:.3f}" for value in arm["metrics"][table["primary"]]["runs"])]


def _difference_row(row: Mapping[str, Any], metric: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    return [
        row["arm"],
        format_estimate(metric["difference"], signed=True),
        p_text(metric["p"]),
        f"{metric['seeds_above']} of {len(table['seeds'])}",
        format_estimate(metric["probability_of_improvement"]),
        metric["verdict"],
    ]


def _stability_row(arm: Mapping[str, Any]) -> list[str]:
    stability = arm["stability"]
    drops = (format_estimate(stability["largest_drop"]), f"{stability['worst_drop']:.3f}")
    return [arm["name"], *drops, str(stability["collapsed"]), str(stability["diverged"])]


def _cost_row(arm: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    cost, spent = arm["cost"], table["match"]["spent"]
    row = [arm["name"], f"{cost['optimizer_steps']:,.0f}", f"{cost['tokens']:,.0f}", f"{cost['seconds']:.0f}"]
    return [*row, f"{spent[arm['name']]:.2f}"] if spent else row


def _tuning_rows(table: Mapping[str, Any]) -> Iterator[list[str]]:
    for arm in table["arms"]:
        for tried in arm["tried"]:
            scores = ", ".join(f"{score:.3f}" for score in tried["scores"])
            mark = "yes" if tried["settings"] == arm["tuned"] else ""
            yield [arm["name"], settings_text(list(tried["settings"].items())), scores, mark]


def _section(title: str, head: Sequence[str], rows: Any) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from _table(head, rows)


def _table(head: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(one_line(cell).replace('|', '/') for cell in row)} |"
