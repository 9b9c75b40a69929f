"""Line charts and interval charts as SVG that fills its box without a script.

Positions are percentages of the plot, and lines are paths in a square of 1000 units that is stretched to the plot, so
text and strokes keep their size at every width. Colors are classes, which follow the theme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.report.markup.elements import Child, Markup, element, fixed, in_unit, join, number, panel

CHART_HEIGHT = 190
FEW_POINTS = 25
"""Number of points up to which each gets a dot."""
FEW_INTERVALS = 6
"""Number of points up to which each gets a rule for its interval, beside the band."""
LONGEST_LABEL = 22
UNITS = 1000

Point = Sequence[float | None]
Estimate = Mapping[str, float | None]


@dataclass(frozen=True)
class Line:
    """A line of a chart: name, number of its style, points, and where the page's data have it."""

    name: str
    style: int
    points: Sequence[Point]
    source: Sequence[str | int]

    @property
    def known(self) -> list[Point]:
        return [point for point in self.points if point[1] is not None and math.isfinite(point[1])]


@dataclass(frozen=True)
class Scale:
    """Maps values to shares of the plot, from 0 to 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(number, self.low)) for number in (value, low, high))
        share = value / (high - low) - low / (high - low) if math.isfinite(high - low) else 0.5
        return min(1.0, max(0.0, share))


def style_class(style: int) -> str:
    """Return the classes of color and dashes, shifted in each round of colors: no two of 49 lines look alike."""
    return f"s{style % 7} d{(style + style // 7) % 7}"


def swatch(style: int) -> Markup:
    line = element("line", x1=0, x2=28, y1=5, y2=5, class_=f"line {style_class(style)}")
    return element("svg", line, class_="swatch", viewBox="0 0 28 10", aria_hidden="true")


def legend_entry(name: str, style: int) -> Markup:
    return element("span", swatch(style), name, class_="legend-entry")


def nice_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return about `count` round numbers from low to high."""
    if not high > low or not math.isfinite(high - low):
        return (low,)
    step = 10.0 ** math.floor(math.log10((high - low) / count))
    if not step:
        return (low,)
    step *= next((factor for factor in (1, 2, 5) if (high - low) / (step * factor) <= count * 1.3), 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(n * step, 12) if step > 1e-9 else n * step for n in range(first, last + 1))


def nice_scale(low: float, high: float, count: int = 4) -> Scale:
    """Return a scale whose ends are round numbers."""
    if low == high:
        low, high = (-1.0, 1.0) if low == 0 else (low - abs(low), low + abs(low))
    ticks = nice_ticks(low, high, count)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        low = min(low, step * math.floor(low / step + 1e-9))
        high = max(high, step * math.ceil(high / step - 1e-9))
        ticks = nice_ticks(low, high, count)
    return Scale(low, high, ticks)


def value_scale(values: Sequence[float], unit: str) -> Scale:
    """Return the vertical scale of curves; a logarithmic one has ticks at powers of ten, for wide ranges only."""
    low, high = min(values), max(values)
    if unit == "share":
        low, high = min(0.0, low), max(1.0, high)
    if unit in ("seconds", "tokens"):
        low = min(0.0, low)
    if unit == "log" and low > 0 and high / low > 30:
        first, last = math.floor(math.log10(low)), min(308, math.ceil(math.log10(high)))
        step = max(1, (last - first) // 5)
        return Scale(10.0**first, 10.0**last, tuple(10.0**power for power in range(first, last + 1, step)), log=True)
    return nice_scale(low, high)


def chart(height: float, label: str, plot: Child, margins: Sequence[float], **data: str | None) -> Markup:
    """Return a box with a plot within its margins (top, right, bottom, left) in pixels; `data` are for scripts."""
    top, right, bottom, left = margins
    size = f"width:calc(100% - {left + right}px);height:{height - top - bottom}px"
    svg = element("svg", plot, class_="plot", style=f"top:{top}px;left:{left}px;{size}", aria_hidden="true")
    return element(
        "div", svg, class_="chart", role="img", aria_label=label, style=f"height:{height}px",
        **{f"data_{key}": value for key, value in data.items()},
    )  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def stretched(*children: Child) -> Markup:
    """Return paths in a square of 1000 units that fills the plot."""
    return element(
        "svg", *children, viewBox=f"0 0 {UNITS} {UNITS}", width="100%", height="100%", preserveAspectRatio="none"
    )


def text(x: float, y: float, content: str, *, dx: float = 0, dy: float = 0, anchor: str = "middle") -> Markup:
    return element("text", content, x=percent(x), y=percent(y), dx=dx, dy=dy, text_anchor=anchor)


def line_panel(title: str, help_text: str, unit: str, lines: Sequence[Line], iterations: Sequence[int],
               *, own_legend: bool) -> Markup | None:  # fmt: skip
    """Return a panel with a chart; None if no line has a value."""
    lines = [line for line in lines if line.known]
    if not lines:
        return None
    legend = [legend_entry(line.name, line.style) for line in lines] if own_legend and len(lines) > 1 else None
    drawn = line_chart(title, unit, lines, iterations)
    return panel(title, help_text, element("div", legend, class_="legend inside"), drawn)


def line_chart(title: str, unit: str, lines: Sequence[Line], iterations: Sequence[int]) -> Markup:
    values = [
        value
        for line in lines
        for point in line.points
        for value in (point[1], *(point[2:4] if None not in point[2:4] else ()))
        if value is not None and math.isfinite(value) and (unit != "log" or value > 0 or value == point[1])
    ]
    y = value_scale(values, unit)
    first, last = (iterations[0] - 1, iterations[1] + 1) if iterations[0] == iterations[1] else iterations
    shown = range(iterations[0], iterations[1] + 1)
    ticks = [int(tick) for tick in nice_ticks(first, last, min(6, last - first)) if tick == int(tick) and tick in shown]
    x = Scale(first, last, tuple(ticks))
    plot = join(
        [_grid_line(y(tick)) for tick in y.ticks],
        [text(0, 1 - y(tick), number(tick), dx=-7, dy=4, anchor="end") for tick in y.ticks],
        [text(x(tick), 1, str(tick), dy=16) for tick in ticks],
        text(1, 1, "iteration", dy=30, anchor="end"),
        stretched([_paths(line, x, y) for line in lines]),
        [_marks(line, x, y) for line in lines],
    )
    parts = [_summary(line, unit) for line in lines]
    domain = json.dumps([first, last, y.low, y.high, int(y.log)])
    sources = json.dumps([[line.source, unit] for line in lines], ensure_ascii=False)
    return chart(CHART_HEIGHT, f"{title}: {'; '.join(parts)}", plot, (10, 14, 38, 46), lines=sources, domain=domain)


def _summary(line: Line, unit: str) -> str:
    first, last = line.known[0], line.known[-1]
    start = f"{in_unit(first[1], unit)} at iteration {first[0]}"
    if first is last:
        return f"{line.name} {start}"
    return f"{line.name} from {start} to {in_unit(last[1], unit)} at iteration {last[0]}"


def _grid_line(share: float) -> Markup:
    return element("line", x1=0, x2="100%", y1=percent(1 - share), y2=percent(1 - share), class_="grid-line")


def _paths(line: Line, x: Scale, y: Scale) -> list[Markup]:
    def place(iteration: float, value: float) -> str:
        return f"{UNITS * x(iteration):.4g},{UNITS * (1 - y(value)):.4g}"

    bands = _runs_of(line.points, lambda point: all(_is_known(value) for value in point[1:4]))
    outlines = [
        "M" + "L".join([*(place(p[0], p[3]) for p in run), *(place(p[0], p[2]) for p in reversed(run))]) + "Z"
        for run in bands
        if len(run) > 1
    ]
    runs = [run for run in _runs_of(line.points, lambda point: _is_known(point[1])) if len(run) > 1]
    strokes = ["M" + "L".join(place(p[0], p[1]) for p in run) for run in runs]
    return [
        *([element("path", d="".join(outlines), class_=f"band {style_class(line.style)}")] if outlines else []),
        *([element("path", d="".join(strokes), class_=f"line {style_class(line.style)}")] if strokes else []),
    ]


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _runs_of(points: Sequence[Point], keep: Callable[[Point], bool]) -> list[list[Any]]:
    """Return the stretches of points without a gap."""
    runs: list[list[Any]] = [[]]
    for point in points:
        if keep(point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _marks(line: Line, x: Scale, y: Scale) -> list[Markup]:
    """Return a dot for each of a few points, and rules for the intervals of very few."""
    points: list[Any] = line.known
    if len(points) > FEW_POINTS:
        return []
    style = style_class(line.style)
    rules = [
        element("line", x1=at, x2=at, y1=percent(1 - y(p[2])), y2=percent(1 - y(p[3])), class_=f"rule {style}")
        for p in points
        if len(points) <= FEW_INTERVALS and _is_known(p[2]) and _is_known(p[3]) and (at := percent(x(p[0])))
    ]
    radius = 4.5 if len(points) == 1 else 2.8
    dots = [
        element("circle", cx=percent(x(p[0])), cy=percent(1 - y(p[1])), r=radius, class_=f"dot {style}") for p in points
    ]
    return [*rules, *dots]


@dataclass(frozen=True)
class Interval:
    """A value with its interval in a row of a chart.

    Attributes:
        mark: Classes of its color.
        note: Text beside the value, above it if `above`.
    """

    estimate: Estimate
    mark: str
    note: str | None = None
    above: bool = False


@dataclass(frozen=True)
class Row:
    """A row of an interval chart; `runs` are drawn as small circles, and two intervals are connected."""

    name: str
    intervals: Sequence[Interval]
    runs: Sequence[float] = ()


def interval_chart(rows: Sequence[Row], label: str, *, row_height: int, ends: Sequence[float], axis: str = "",
                   show: Callable[[float | None], str] = fixed) -> Markup:  # fmt: skip
    """Return values with intervals, one row each; `ends` are values that the scale must contain."""
    estimates = [interval.estimate for row in rows for interval in row.intervals]
    values = [value for estimate in estimates for value in estimate.values() if value is not None]
    values += [value for row in rows for value in row.runs]
    scale = nice_scale(min([*values, *ends]), max([*values, *ends]), 5)
    names = [row.name if len(row.name) <= LONGEST_LABEL else f"{row.name[: LONGEST_LABEL - 1]}\u2026" for row in rows]
    plot = join(
        [element("line", x1=at, x2=at, y1=0, y2="100%", class_="grid-line" if tick else "grid-line zero")
         for tick in scale.ticks for at in [percent(scale(tick))]],
        [text(scale(tick), 1, number(tick), dy=16) for tick in scale.ticks],
        text(0.5, 1, axis, dy=32) if axis else None,
        [text(0, (n + 0.5) / len(rows), name, dx=-10, dy=4, anchor="end") for n, name in enumerate(names)],
        [_row(row, scale, percent((n + 0.5) / len(rows)), (n + 0.5) / len(rows)) for n, row in enumerate(rows)],
    )  # fmt: skip
    texts = [
        f"{row.name} "
        + ", ".join(f"{interval.note or ''} {interval_text(interval.estimate, show)}" for interval in row.intervals)
        for row in rows
    ]
    bottom = 40 if axis else 24
    left = 24 + 7 * max(map(len, names))
    return chart(len(rows) * row_height + bottom, f"{label}: {'; '.join(texts)}", plot, (0, 20, bottom, left))


def _row(row: Row, scale: Scale, y: str, share: float) -> Markup:
    known = [interval for interval in row.intervals if interval.estimate["value"] is not None]
    ends = [percent(scale(interval.estimate["value"] or 0)) for interval in known]
    reaches = [(interval.estimate["low"], interval.estimate["high"], interval.mark) for interval in known]
    return join(
        element("line", x1=ends[0], x2=ends[-1], y1=y, y2=y, class_="move") if len(ends) > 1 else None,
        [
            element("line", x1=percent(scale(low)), x2=percent(scale(high)), y1=y, y2=y, class_=f"range {mark}")
            for low, high, mark in reaches
            if low is not None and high is not None
        ],
        [element("circle", cx=percent(scale(value)), cy=y, r=2.5, class_=f"run {row.intervals[0].mark}")
         for value in row.runs],
        [element("circle", cx=end, cy=y, r=5, class_=f"dot {interval.mark}")
         for end, interval in zip(ends, known, strict=True)],
        [text(scale(interval.estimate["value"] or 0), share, interval.note, dy=-10 if interval.above else 19)
         for interval in known if interval.note],
    )  # fmt: skip


def interval_text(estimate: Estimate, show: Callable[[float | None], str] = fixed) -> str:
    if estimate["low"] is None:
        return show(estimate["value"])
    return f"{show(estimate['value'])} ({show(estimate['low'])} to {show(estimate['high'])})"


def interval_cell(estimate: Estimate | None, show: Callable[[float | None], str] = fixed) -> Child:
    """Return a value with its interval in a cell; too few runs have none."""
    if estimate is None:
        return number(None)
    value = element("strong", show(estimate["value"]))
    if estimate["low"] is None:
        return value
    return join(value, element("span", f" {show(estimate['low'])} to {show(estimate['high'])}", class_="interval"))
