"""The parts of a report that need no script: the result of each run, curves, and heat maps of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seeupo.report.markup.charts import (
    Interval,
    Line,
    Row,
    interval_cell,
    interval_chart,
    legend_entry,
    line_panel,
    swatch,
)
from seeupo.report.markup.elements import Markup, change, element, join, plural, table
from seeupo.report.markup.heat_maps import map_panel

VERDICT_SIGNS = {
    "improved": ("\u2191", "good"),
    "no_change": ("\u2248", "plain"),
    "regressed": ("\u2193", "bad"),
    "inconclusive": ("?", "plain"),
}
WARNINGS_SHOWN = 5
NO_CURVES = (
    "There are no metrics by iteration: the run stopped before its first iteration ended, or metrics.jsonl is missing."
)
NO_TURNS = (
    "This run has no metrics by turn: it stopped before the first update, or its algorithm does not update by turn."
)

Run = Mapping[str, Any]


def report_body(overview: Mapping[str, Any]) -> dict[str, Markup]:
    """Return the contents of the placeholders of `page.html`."""
    runs = overview["runs"]
    names = ", ".join(run["name"] for run in runs)
    several = len(runs) > 1
    return {
        "document_title": join(f"{names} \u2013 SeeUPO report"),
        "names": join(names),
        "cards": element(
            "div", [_card(run, n, several=several) for n, run in enumerate(runs)],
            id="cards", class_="several" if several else None,
        ),
        "legend": join([legend_entry(run["name"], n) for n, run in enumerate(runs)] if several else None),
        "curves": join(_curve_panels(runs) or element("p", NO_CURVES, class_="note")),
        "turns": join([_turns(run, n, several=several) for n, run in enumerate(runs)]),
        "written_by": join(f"Written by {overview['written_by']}. "),
    }  # fmt: skip


def _card(run: Run, n: int, *, several: bool) -> Markup:
    sign, kind = VERDICT_SIGNS[run["verdict"]]
    return element(
        "article",
        element(
            "div",
            element("h3", swatch(n) if several else None, run["name"], id=f"run-{n}"),
            element(
                "span", element("span", f"{sign} ", aria_hidden="true"), run["verdict_label"], class_=f"verdict {kind}"
            ),
            class_="card-head",
        ),
        element("p", f"{run['model']} on {run['environment']}, trained with {run['algorithm']}", class_="trained"),
        element("p", run["sentence"], class_="sentence"),
        element("p", run["stopped"], class_="note") if run.get("stopped") else None,
        _scores(run),
        _note("Missing or damaged", [element("li", text) for text in run["missing"]], "note"),
        _warnings(run),
        _command(run["command"], n) if run["command"] else None,
        _details(run, several=several),
        class_="card",
        aria_labelledby=f"run-{n}",
    )


def _scores(run: Run) -> Markup | None:
    rows = [score for score in run["scores"] if score["before"] or score["after"]]
    if not rows:
        return None
    drawn = []
    for n, score in enumerate(rows):
        sides = (("before", score["before"], True), ("after", score["after"], False))
        drawn.append(
            Row(
                score["name"],
                [Interval(side, name, name if n == 0 else None, above) for name, side, above in sides if side],
            )
        )
    return element(
        "div",
        interval_chart(drawn, "Scores", row_height=46, ends=(0.0, 1.0)),
        table(
            f"Scores of {run['name']}",
            ["Score", "Before", "After", "Difference"],
            [
                [
                    score["name"],
                    interval_cell(score["before"]),
                    interval_cell(score["after"]),
                    interval_cell(score["difference"], change),
                ]
                for score in rows
            ],
            "Held-out tasks, with 95% intervals",
        ),
        class_="scores",
    )


def _note(title: str, items: Sequence[Markup], kind: str, *more: Markup | None) -> Markup | None:
    return element("div", element("h4", title), element("ul", items), *more, class_=kind) if items else None


def _warnings(run: Run) -> Markup | None:
    items = [
        element(
            "li",
            None
            if warning["iteration"] is None
            else element("span", f"Iteration {warning['iteration']}: ", class_="when"),
            warning["text"][:1].upper() + warning["text"][1:],
        )
        for warning in run["warnings"]
    ]
    rest = items[WARNINGS_SHOWN:]
    more = element("details", element("summary", f"{len(rest):,} more"), element("ul", rest)) if rest else None
    return _note(plural(len(items), "warning"), items[:WARNINGS_SHOWN], "note warn", more)


def _command(command: str, n: int) -> Markup:
    """Return the command with a button, which a script shows."""
    code = element("code", command, tabindex=0, id=f"command-{n}")
    button = element(
        "button", "Copy", type="button", class_="quiet", hidden=True, data_copy=f"command-{n}", data_what="Command"
    )
    return element(
        "div",
        element("h4", "Command to repeat the run"),
        element("div", code, button, class_="command-line"),
        class_="command",
    )


def _details(run: Run, *, several: bool) -> Markup | None:
    entries = [element("div", element("dt", label), element("dd", value)) for label, value in run["details"]]
    if not entries:
        return None
    return element(
        "details", element("summary", "Run details"), element("dl", entries), class_="run-details", open=not several
    )


def _curve_panels(runs: Sequence[Run]) -> list[Markup]:
    """Return a chart per curve: the series of one run share it; of several runs, each series has one with all runs."""
    several = len(runs) > 1
    panels: dict[tuple[str, ...], tuple[Mapping[str, Any], str, list[Line]]] = {}
    named: dict[str, set[str]] = {}
    for run in runs:
        for curve in run["curves"]:
            named.setdefault(curve["key"], set()).update(series["name"] for series in curve["series"])
    for r, run in enumerate(runs):
        for c, curve in enumerate(run["curves"]):
            for s, series in enumerate(curve["series"]):
                key = (curve["key"], series["name"]) if several else (curve["key"],)
                shared = several and len(named[curve["key"]]) > 1
                title = f"{curve['title']}: {series['name']}" if shared else curve["title"]
                source = ("runs", r, "curves", c, "series", s)
                line = Line(run["name"] if several else series["name"], r if several else s, series["points"], source)
                panels.setdefault(key, (curve, title, []))[2].append(line)
    # The series of a curve stay together, in the order of the first run that has the curve.
    order = list(dict.fromkeys(curve["key"] for run in runs for curve in run["curves"]))
    iterations = [
        int(p[0]) for _, _, lines in panels.values() for line in lines for p in line.points if p[0] is not None
    ]
    drawn = [
        line_panel(
            title, curve["help"], curve["unit"], lines, (min(iterations), max(iterations)), own_legend=not several
        )
        for _, (curve, title, lines) in sorted(panels.items(), key=lambda entry: order.index(entry[0][0]))
    ]
    return [panel for panel in drawn if panel is not None]


def _turns(run: Run, n: int, *, several: bool) -> Markup:
    maps = run["turn_maps"]
    panels = [panel for m, each in enumerate(maps) if (panel := map_panel(each, ("runs", n, "turn_maps", m)))]
    together = any(cell[3] is None for each in maps for cell in each["cells"])
    order = "All turns of an iteration are updated together." if together else (
        "The turns of an iteration are updated one after another, in the direction of the arrow."
    )  # fmt: skip
    return join(
        element("h3", swatch(n), run["name"], class_="run-name") if several else None,
        element("p", order, class_="lead") if panels else element("p", NO_TURNS, class_="note"),
        element("div", panels, class_="grid wide"),
    )
