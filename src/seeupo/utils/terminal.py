"""The console that every table, styled text and live display is printed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from seeupo.utils.text import one_line, visible


class Terminal(Console):
    """A console for tables, styled text and live displays that prints text from outside as it is, and visibly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(one_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            # Only text that was printed elsewhere during a live display contains links.
            plain = style.update_link(None) if style is not None and style.link else style
            yield Segment(text if control else visible(text), plain, control)
