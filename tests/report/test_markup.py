"""HTML and SVG of pages: text is escaped, and numbers of any size are drawn."""

import base64
import math
import re
import struct
import zlib

import pytest

from seeupo.report.markup.charts import Line, nice_scale, nice_ticks, value_scale
from seeupo.report.markup.charts import line_chart as draw
from seeupo.report.markup.elements import element, fixed, in_unit, join, number
from seeupo.report.markup.heat_maps import MAX_COLUMNS, color_of, map_panel, update_order

HOSTILE = "</script><img src=x onerror='alert(1)'>\u202e\x00"


def test_text_is_escaped_in_elements_and_attributes():
    made = element("p", HOSTILE, element("b", "&"), title=f'"{HOSTILE}', hidden=True, lang=None)
    assert "<img" not in made
    assert "\u202e" not in made
    assert "[U+202E]\u2400" in made
    assert made.startswith('<p title="&quot;&lt;/script&gt;')
    assert made.endswith("<b>&amp;</b></p>")
    assert join(["<", [None, "a"]]) == "&lt;a"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (-1.23456, "\u22121.23"), (1234.5, "1,235"), (2e-7, "2e\u22127"), (1.5e6, "1.5e6"),
     (math.inf, "\u2013"), (None, "\u2013")],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_huge_numbers_stay_short():
    assert fixed(1e300) == in_unit(1e300, "share") == in_unit(1e300, "tokens") == "1e300"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.35, 0.36), (-3e-9, 1e-8), (3, 4e12), (-1e308, 1e308)])
def test_ticks_are_within_the_scale(low, high):
    scale = nice_scale(low, high)
    assert scale.low <= low
    assert scale.high >= high
    assert all(scale.low - 1e-9 * abs(scale.low) <= tick <= scale.high + 1e-9 * abs(scale.high) for tick in scale.ticks)
    assert 0 <= scale(low) <= scale(high) <= 1
    assert len(nice_ticks(low, high, 4)) <= 7


def test_wide_ranges_are_logarithmic():
    assert value_scale([1e-6, 1e-2], "log").log
    assert value_scale([1e-6, 1e-2], "log")(1e-4) == pytest.approx(0.5)
    assert not value_scale([1e-6, 2e-6], "log").log


@pytest.mark.parametrize("value", [0.0, 1e-300, 1.7e308, -1.7e308])
@pytest.mark.parametrize("unit", ["share", "log", "seconds", "tokens", "number"])
def test_any_number_can_be_drawn(value, unit):
    points = [[1, value, None, None], [2, 1.0, value, value], [3, None, None, None], [4, 0.5, 0.1, 0.9]]
    made = draw("t", unit, [Line("run", 0, points, ("runs", 0))], (1, 4))
    assert not re.search(r"nan|inf(?!o)", made)


def picture(cells, **changes):
    """Return width, height and the pixels of the picture of a heat map."""
    heat_map = {"title": "t", "help": "h", "scale": "sequential", "center": None, "cells": cells, **changes}
    content = base64.b64decode(re.search(r"base64,([^\"]*)", map_panel(heat_map, ("runs", 0)))[1])
    width, height = struct.unpack(">II", content[16:24])
    length = struct.unpack(">I", content[33:37])[0]
    rows = zlib.decompress(content[41 : 41 + length])
    stride = 1 + 4 * width
    return width, height, [[tuple(rows[r * stride + 1 + 4 * c :][:4]) for c in range(width)] for r in range(height)]


def test_each_cell_is_a_pixel_and_missing_cells_are_transparent():
    width, height, pixels = picture([[3, 1, 0.0, 1], [4, 2, 1.0, 1]])
    assert (width, height) == (2, 2)
    assert pixels[0][0] == (*color_of(0.0, "sequential"), 255)
    assert pixels[1][1] == (*color_of(1.0, "sequential"), 255)
    assert pixels[0][1] == pixels[1][0] == (0, 0, 0, 0)


def test_a_damaged_iteration_makes_no_large_picture():
    width, _, _ = picture([[1, 1, 0.5, 1], [10**15, 1, 0.5, 1], [10**15 - 5, 1, 0.7, 1]])
    assert width <= MAX_COLUMNS


def test_the_update_order_is_read_from_positions():
    assert update_order([[1, 1, 0.5, 2], [1, 2, 0.5, 1]]) == "reverse"
    assert update_order([[1, 1, 0.5, 1], [1, 2, 0.5, 2]]) == "natural"
    assert update_order([[1, 1, 0.5, 1], [1, 2, 0.5, 2], [2, 1, 0.5, 2], [2, 2, 0.5, 1]]) == "mixed"
    assert update_order([[1, 1, 0.5, None], [1, 2, 0.5, None]]) == "together"
