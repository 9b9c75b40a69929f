"""The page of a comparison: scores of all arms, curves, paired differences, stability, cost and tuning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seeupo.report.markup.charts import (
    Interval,
    Line,
    Row,
    interval_cell,
    interval_chart,
    legend_entry,
    line_panel,
    style_class,
)
from seeupo.report.markup.elements import Markup, change, element, fixed, join, number, panel, plural, table

VERDICT_KINDS = {"Better": "good", "Worse": "bad"}

Table = Mapping[str, Any]


def comparison_body(data: Table) -> dict[str, Markup]:
    """Return the contents of the placeholders of `comparison.html`."""
    reference = data["reference"]
    versions = data["versions"]
    return {
        "document_title": join(f"{data['study']} \u2013 SeeUPO comparison"),
        "names": join(data["study"]),
        "result": join(*_result(data)),
        "legend": join([legend_entry(arm["name"], n) for n, arm in enumerate(data["arms"])]),
        "curves": join(_curves(data)),
        "differences_lead": join(
            f"Each arm minus {reference}, seed by seed. The probability of improvement compares all pairs of runs. "
            "p-values are adjusted for the number of arms."
        ),
        "differences": join([_differences(data, key) for key in data["metrics"]]),
        "stability": join(_stability(data), _cost(data)),
        "settings": join(_settings(data), _tuning(data)),
        "written_by": join(f"Written by seeupo {versions['seeupo']}, training revision {versions['revision']}. "),
    }


def _position(data: Table, name: str) -> int:
    return next(n for n, arm in enumerate(data["arms"]) if arm["name"] == name)


def _arm(data: Table, name: str) -> Markup:
    return legend_entry(name, _position(data, name))


def _metric_title(data: Table, key: str) -> str:
    return f"{data['metrics'][key]['title']}{' (primary)' if key == data['primary'] else ''}"


def _result(data: Table) -> Iterable[Markup]:
    primary = data["primary"]
    summary = data["summary"]
    yield element("div", element("h3", data["study"]), class_="card-head")
    yield element("p", f"{summary[:1].upper()}{summary[1:]}.", class_="sentence")
    yield table(
        "Scores",
        ["Arm", *(_metric_title(data, key) for key in data["metrics"]), f"{data['metrics'][primary]['title']}, mean"],
        [
            [
                _arm(data, arm["name"]),
                *(interval_cell(arm["metrics"][key]) for key in data["metrics"]),
                interval_cell(arm["metrics"][primary]["mean"]),
            ]
            for arm in data["arms"]
        ],
    )
    helps = " ".join(f"{metric['title']}: {metric['help']}." for metric in data["metrics"].values())
    seeds = plural(len(data["seeds"]), "seed")
    yield element(
        "p",
        f"Interquartile means over {seeds}, and the mean of all runs; read the mean where runs end in two groups. "
        + helps,
        class_="hint",
    )
    yield element("ul", [element("li", sentence) for sentence in data["sentences"]], class_="facts")
    yield element("p", data["statistics"], class_="hint")


def _curves(data: Table) -> Iterable[Markup]:
    held_out = data.get("held_out")
    few = all(len(arm["score_curve"]) <= 1 for arm in data["arms"])
    help_text = f"avg@{data['k']} on {'held-out' if held_out else 'training'} tasks."
    curves = [("Training reward", "Mean reward of each iteration's trajectories.", "reward_curve", 1)]
    if not few:
        curves.append(("Held-out score" if held_out else "Score", help_text, "score_curve", 0))
    for title, text, key, first in curves:
        lines = [Line(arm["name"], n, arm[key], ("arms", n, key)) for n, arm in enumerate(data["arms"])]
        drawn = line_panel(title, text, "score", lines, (first, data["iterations"]), own_legend=False)
        if drawn is not None:
            yield drawn
    primary = data["metrics"][data["primary"]]
    rows = [
        (arm["name"], arm["metrics"][data["primary"]], arm["metrics"][data["primary"]]["runs"]) for arm in data["arms"]
    ]
    yield panel(
        primary["title"],
        f"{primary['help']}: interquartile mean with 95% interval, and each run as a circle",
        _forest(data, rows, primary["title"]),
    )


def _forest(data: Table, rows: Sequence[tuple[str, Mapping[str, Any], Sequence[float]]], label: str,
            *, ends: Sequence[float] = (), show: Callable[[float | None], str] = fixed) -> Markup:  # fmt: skip
    """Return values with intervals, one row per arm, and the runs they come from."""
    drawn = []
    for name, estimate, runs in rows:
        interval = {end: estimate[end] for end in ("value", "low", "high")}
        drawn.append(Row(name, [Interval(interval, style_class(_position(data, name)).split()[0])], runs))
    return interval_chart(drawn, label, row_height=30, ends=ends, axis=label, show=show)


def _differences(data: Table, key: str) -> Markup:
    reference = data["reference"]

    def runs_of(name: str) -> list[float]:
        runs: list[float] = data["arms"][_position(data, name)]["metrics"][key]["runs"]
        return runs

    rows = []
    for comparison in data["comparisons"]:
        pairs = zip(runs_of(comparison["arm"]), runs_of(reference), strict=True)
        rows.append((comparison["arm"], comparison["metrics"][key], [value - base for value, base in pairs]))
    return panel(
        _metric_title(data, key),
        data["metrics"][key]["help"],
        element(
            "div",
            _forest(
                data, [(arm, metric["difference"], runs) for arm, metric, runs in rows],
                f"difference from {reference}", ends=(0.0,), show=change,
            ),
            table(
                f"Differences in {data['metrics'][key]['title']}",
                ["Arm", "Verdict", "Difference", "p", "Seeds above", "Probability of improvement"],
                [
                    [
                        _arm(data, arm),
                        element(
                            "span", metric["verdict"], class_=f"verdict {VERDICT_KINDS.get(metric['verdict'], 'plain')}"
                        ),
                        interval_cell(metric["difference"], change),
                        "< 0.001" if metric["p"] is not None and metric["p"] < 0.001 else fixed(metric["p"]),
                        f"{metric['seeds_above']} of {len(data['seeds'])}",
                        interval_cell(metric["probability_of_improvement"]),
                    ]
                    for arm, metric, _ in rows
                ],
            ),
            class_="scores difference",
        ),
    )  # fmt: skip


def _stability(data: Table) -> Markup:
    return panel(
        "Stability",
        "Largest drop of the reward, smoothed over 5 iterations, below its best so far. A run has collapsed if it ends "
        "below half of its best.",
        table(
            "Stability",
            ["Arm", "Largest drop", "Worst run", "Collapsed", "Diverged"],
            [
                [
                    _arm(data, arm["name"]),
                    interval_cell(arm["stability"]["largest_drop"]),
                    fixed(arm["stability"]["worst_drop"]),
                    str(arm["stability"]["collapsed"]),
                    str(arm["stability"]["diverged"]),
                ]
                for arm in data["arms"]
            ],
        ),
    )


def _cost(data: Table) -> Markup:
    spent, quantity = data["match"]["spent"], data["match"]["quantity"]
    matched = f" Matched: {quantity.replace('_', ' ')}." if spent else ""
    return panel(
        "Cost of a run",
        f"Means over seeds; seconds of sampling and updates.{matched}",
        table(
            "Cost",
            ["Arm", "Optimizer steps", "Tokens", "Seconds", *(["Of the target"] if spent else [])],
            [
                [
                    _arm(data, arm["name"]),
                    f"{round(arm['cost']['optimizer_steps']):,}",
                    f"{round(arm['cost']['tokens']):,}",
                    number(arm["cost"]["seconds"]),
                    *([f"{spent[arm['name']]:.2f}"] if spent else []),
                ]
                for arm in data["arms"]
            ],
        ),
    )


def _setting_text(pairs: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in pairs)


def _settings(data: Table) -> Markup:
    rows = [
        element(
            "tr",
            element("th", _arm(data, arm["name"]), scope="row"),
            element("td", _setting_text(arm["settings"])),
        )
        for arm in data["arms"]
    ]
    text = "Where each arm differs from the recipe and from its algorithm's defaults."
    return panel("Settings", text, element("table", element("tbody", rows)))


def _tuning(data: Table) -> Markup | None:
    rows = [
        [
            _arm(data, arm["name"]),
            _setting_text(trial["settings"].items()),
            ", ".join(map(fixed, trial["scores"])),
            element("strong", "chosen") if trial["settings"] == arm["tuned"] else "",
        ]
        for arm in data["arms"]
        for trial in arm["tried"]
    ]
    if not rows:
        return None
    seeds = ", ".join(map(str, data["tuning_seeds"]))
    text = f"Reward AUC on the tuning seeds ({seeds}), which are not reported."
    return panel("Tuning", text, table("Tuning", ["Arm", "Settings", "Reward AUC", ""], rows))
