"""HTML elements from text that is always escaped, and numbers as text, as `page/dom.js` has them for scripts."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

MINUS, NONE = "\u2212", "\u2013"
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Invisible characters, those that reorder the text around them, and halves of characters."""
LARGE = 1e12
"""Size from which every number has an exponent."""
EMPTY = ("image", "line", "circle", "path")


class Markup(str):
    """Markup made by this module; every other string is text and will be escaped."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element. Underscores in names of attributes become hyphens, `class_` and `for_` lose theirs."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(attribute if value is True else f'{attribute}="{html.escape(visible(str(value)))}"')
    content = "".join(_flat(children))
    if name in EMPTY and not content:
        return Markup(f"<{' '.join(parts)}/>")
    return Markup(f"<{' '.join(parts)}>{content}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(_flat(children)))


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield html.escape(visible(child), quote=False)
        elif child is not None:
            yield from _flat(child)


def visible(text: str) -> str:
    """Return a text in which characters that cannot be seen are replaced by their code points."""
    return INVISIBLE.sub(lambda match: _shown(ord(match[0])), text)


def _shown(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def table(label: str, head: Sequence[Child], rows: Iterable[Sequence[Child]], caption: str | None = None) -> Markup:
    """Return a table in a box that scrolls sideways, so that the page never does; the first cell names its row."""
    body = [
        element("tr", element("th", first, scope="row"), [element("td", cell) for cell in rest])
        for first, *rest in rows
    ]
    return scroll_box(
        label,
        element(
            "table",
            None if caption is None else element("caption", caption),
            element("thead", element("tr", [element("th", cell, scope="col") for cell in head])),
            element("tbody", body),
            class_="plain",
        ),
    )


def scroll_box(label: str, *children: Child) -> Markup:
    return element("div", *children, class_="scroll", role="region", tabindex=0, aria_label=label)


def panel(title: str, text: str | None, *children: Child) -> Markup:
    heading = element("figcaption", element("h3", title), None if not text else element("p", text))
    return element("figure", heading, *children, class_="panel")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with significant digits; very large and very small ones with an exponent."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        text = f"{mantissa}e{MINUS if int(exponent) < 0 else ''}{abs(int(exponent))}"
    elif size >= 1000:
        text = f"{math.floor(size + 0.5):,}"
    else:
        text = f"{float(f'{size:.{digits}g}'):g}"
    return (MINUS if value < 0 else "") + text


def in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    if unit == "share":
        return fixed(value)
    if unit == "seconds":
        return f"{number(value)} s"
    return f"{round(value):,}" if unit == "tokens" and abs(value) < LARGE else number(value, 4)


def fixed(value: float | None) -> str:
    return f"{value:.3f}".replace("-", MINUS) if value is not None and abs(value) < LARGE else number(value)


def change(value: float | None) -> str:
    return ("+" if value is not None and value > 0 else "") + fixed(value)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
