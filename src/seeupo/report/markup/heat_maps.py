"""Heat maps of turns by iterations: a PNG of one pixel per cell in an SVG, with the order of the updates."""

from __future__ import annotations

import json
import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from seeupo.report.markup.charts import chart, nice_ticks, percent, text
from seeupo.report.markup.elements import Markup, element, join, number, panel

ROW_HEIGHT = 22
COLORED = {"sequential": 0.98, "diverging": 0.9}
"""Share of the cells within the color scale: a few extreme cells would use it up, so it ends before them."""
DARKEST = 0.1
"""Where the sequential scale starts: the dark end of cividis would vanish on a dark page."""
DIVERGING = ((154, 74, 0), (224, 138, 46), (244, 241, 236), (90, 165, 214), (7, 80, 138))
"""Orange is less and blue is more. Both ends are dark, so lightness shows the distance from the center."""
CIVIDIS = ((-4.54, -35.34, 2381.73, -6402.7, 7024.72, -2710.57), (32.49, 170.73, 52.82, -131.46, 176.58, -67.37),
           (81.24, 442.36, -2482.43, 6167.24, -6614.94, 2475.67))  # fmt: skip
"""Polynomials of red, green and blue that approximate the color map cividis."""

MAX_COLUMNS = 10_000
"""Earlier iterations are left out: a number in a damaged file must not make a picture of any size."""

Color = tuple[int, ...]


def map_panel(heat_map: Mapping[str, Any], source: Sequence[str | int]) -> Markup | None:
    """Return a panel with a heat map; None if no cell has a value. `source` is where the page's data have it."""
    cells = [cell for cell in heat_map["cells"] if cell[2] is not None]
    if not cells:
        return None
    latest = max(int(cell[0]) for cell in cells)
    cells = [cell for cell in cells if cell[0] > latest - MAX_COLUMNS]
    iterations = [int(cell[0]) for cell in cells]
    first, last, turns = min(iterations), max(iterations), max(int(cell[1]) for cell in cells)
    values = [cell[2] for cell in cells]
    scale = _ends(heat_map, values)
    low, high = min(values), max(values)
    order = update_order(cells)
    arrows = order in ("reverse", "natural")
    absent = len(cells) < (last - first + 1) * turns
    label = f"{heat_map['title']} by turn and iteration, from {number(low)} to {number(high)}"
    ticks = [tick for tick in nice_ticks(first, last, min(8, last - first + 1)) if tick == int(tick)]
    width = last - first + 1
    shares = {(int(cell[0]) - first, int(cell[1]) - 1): _share(cell[2], scale) for cell in cells}
    colors = {place: color_of(share, heat_map["scale"]) for place, share in shares.items()}
    plot = join(
        element(
            "image", href=_picture(colors, width, turns), width="100%", height="100%",
            preserveAspectRatio="none",
        ),
        [text(0, (turn - 0.5) / turns, f"turn {turn}", dx=-6, dy=4, anchor="end") for turn in range(1, turns + 1)],
        [text((tick - first + 0.5) / width, 1, f"{tick:.0f}", dy=16) for tick in ticks or [first]],
        text(1, 1, "iteration", dy=30, anchor="end"),
        _arrow(order, turns) if arrows else None,
    )  # fmt: skip
    height = turns * max(ROW_HEIGHT, 88 / turns) + 44
    margins = (6, 78 if arrows else 12, 38, 46)
    domain = json.dumps([first, last, turns])
    hints = [
        f"The color scale covers {number(scale[0])} to {number(scale[1])}; values range from {number(low)} to "
        f"{number(high)}." if low < scale[0] - 1e-12 or high > scale[1] + 1e-12 else None,
        "A hatched cell means that no attempt reached this turn, or that none of them had an advantage."
        if absent else None,
        "The update order differs between iterations: point at a cell to see it." if order == "mixed" else None,
    ]  # fmt: skip
    return panel(
        heat_map["title"],
        heat_map["help"],
        _color_bar(heat_map, scale),
        chart(height, label, plot, margins, map=json.dumps(source), domain=domain),
        [element("p", hint, class_="hint") for hint in hints if hint],
    )


def update_order(cells: Sequence[Sequence[Any]]) -> str:
    """Return whether turns are updated together, in reverse, in natural or in mixed order, or are single."""
    if any(cell[3] is None for cell in cells):
        return "together"
    if len({cell[1] for cell in cells}) < 2:
        return "single"
    directions = set()
    by_iteration: dict[int, list[Sequence[Any]]] = {}
    for cell in cells:
        by_iteration.setdefault(cell[0], []).append(cell)
    for group in by_iteration.values():
        ordered = sorted(group, key=lambda cell: cell[1])
        directions |= {before[3] < after[3] for before, after in pairwise(ordered)}
    return "mixed" if len(directions) != 1 else "natural" if True in directions else "reverse"


def _ends(heat_map: Mapping[str, Any], values: Sequence[float]) -> tuple[float, float]:
    if heat_map["scale"] == "diverging":
        center = heat_map["center"] or 0.0
        far = sorted(abs(value - center) for value in values)
        reach = _quantile(far, COLORED["diverging"]) or far[-1] or 1e-3
        return center - reach, center + reach
    low, end, high = min(values), _quantile(sorted(values), COLORED["sequential"]), max(values)
    return low, end if end > low else high if high > low else low + (abs(low) or 1.0)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def color_of(share: float, scale: str) -> Color:
    """Return red, green and blue at a share of a color scale."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.5
    if scale == "diverging":
        place = share * (len(DIVERGING) - 1)
        below = min(int(place), len(DIVERGING) - 2)
        ends = zip(DIVERGING[below], DIVERGING[below + 1], strict=True)
        return tuple(round(a + (b - a) * (place - below)) for a, b in ends)
    t = DARKEST + (1 - DARKEST) * share
    return tuple(
        min(255, max(0, round(sum(factor * t**power for power, factor in enumerate(factors))))) for factors in CIVIDIS
    )


def _share(value: float, ends: tuple[float, float]) -> float:
    reach = ends[1] - ends[0]
    return (value - ends[0]) / reach if math.isfinite(reach) else 0.5


def _picture(colors: Mapping[tuple[int, int], Color], width: int, height: int) -> str:
    """Return pixels, by column and row, as the address of a PNG; the others are transparent."""
    rows = [bytearray(1 + 4 * width) for _ in range(height)]
    for (column, row), color in colors.items():
        rows[row][1 + 4 * column : 5 + 4 * column] = bytes((*color, 255))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    content = b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    )
    return "data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n" + content).decode()


def _color_bar(heat_map: Mapping[str, Any], ends: tuple[float, float]) -> Markup:
    colors = (color_of(step / 8, heat_map["scale"]) for step in range(9))
    gradient = ", ".join(f"rgb({', '.join(map(str, color))})" for color in colors)
    bar = element("span", class_="color-bar", style=f"background-image: linear-gradient(to right, {gradient})")
    center = None
    if heat_map["scale"] == "diverging":
        center = element("span", f" below and above {number(heat_map['center'] or 0.0)}", class_="hint")
    return element("p", number(ends[0], 4), bar, number(ends[1], 4), center, class_="colors")


def _arrow(order: str, turns: int) -> Markup:
    first, last = ((0.5 / turns, 1 - 0.5 / turns)) if order == "natural" else (1 - 0.5 / turns, 0.5 / turns)
    head = "M10,-8L14,0L18,-8" if order == "natural" else "M10,8L14,0L18,8"
    stem = element("line", x1=14, x2=14, y1=percent(first), y2=percent(last), class_="arrow")
    return element(
        "svg",
        stem,
        element("svg", element("path", d=head, class_="arrow"), y=percent(last)),
        element("text", "updated", x=24, y=percent(first), dy=-2),
        element("text", "first", x=24, y=percent(first), dy=10),
        element("text", "last", x=24, y=percent(last), dy=4),
        x="100%",
    )
