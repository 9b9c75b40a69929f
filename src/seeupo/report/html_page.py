"""Write a page as one HTML file: markup, style and scripts, then the data chunk by chunk.

Text from a run in the markup is escaped (`markup/elements.py`). Data for scripts are base64 in elements that browsers
do not run, and the page's content security policy allows exactly the script written here, by its hash.
"""

from __future__ import annotations

import html
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from seeupo.report.markup.comparison_body import comparison_body
from seeupo.report.markup.elements import Markup
from seeupo.report.markup.report_body import report_body
from seeupo.utils.atomic_files import atomic_write

PAGE = Path(__file__).with_name("page")
SHARED_SCRIPTS = ("dom.js", "data.js", "charts.js", "theme.js")


@dataclass(frozen=True)
class Layout:
    """A kind of page.

    Attributes:
        markup: File in `page` with placeholders.
        scripts: Files in `page`, in order.
        data: Chunk that `body` renders.
        body: Returns the contents of the placeholders.
    """

    markup: str
    scripts: tuple[str, ...]
    data: str
    body: Callable[[Mapping[str, Any]], Mapping[str, Markup]]


REPORT_PAGE = Layout(
    "page.html",
    (
        "arrays.js",
        *SHARED_SCRIPTS,
        "credit.js",
        "viewer.js",
        "side_by_side.js",
        "list.js",
        "links.js",
        "main.js",
    ),
    "overview",
    report_body,
)
COMPARISON_PAGE = Layout("comparison.html", (*SHARED_SCRIPTS, "comparison.js"), "comparison", comparison_body)
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, chunks: Mapping[str, bytes], layout: Layout) -> None:
    """Write the page completely or not at all.

    Args:
        chunks: Gzipped JSON by name; of a report: `overview`, `index`, `bodies-0`, `bodies-1` ...
        layout: Kind of page.
    """
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(_skeleton(layout, chunks[layout.data]).encode())
        for name, content in chunks.items():
            file.write(b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), b64encode(content)))
        file.write(b"</body>\n</html>\n")


def _skeleton(layout: Layout, data: bytes) -> str:
    """Return everything before the data."""
    page_scripts = "\n".join(_read(PAGE / name) for name in layout.scripts)
    script = f'"use strict";\n(() => {{\n{page_scripts}}})();\n'
    parts = {
        **layout.body(json.loads(zlib.decompress(data, 31))),
        "policy": _content_security_policy(script),
        "style": _read(PAGE / "style.css"),
        "scripts": f"<script>{script}</script>",
    }
    return PLACEHOLDER.sub(lambda match: parts[match[1]], _read(PAGE / layout.markup))


def _content_security_policy(script: str) -> str:
    """Return the policy of the page: browsers run this script only and load nothing."""
    rules = (
        "default-src 'none'",
        f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'",
        "style-src 'unsafe-inline'",  # charts position their parts by style attributes
        "img-src data:",  # the cells of heat maps
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # scripts cannot turn text into markup
        "trusted-types 'none'",
    )
    return html.escape("; ".join(rules), quote=False)


def _read(path: Path) -> str:
    """Return a text file with line ends as browsers see them, because the hashes depend on them."""
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")
