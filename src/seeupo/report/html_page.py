"""Write the report as one HTML file: markup, style, scripts and libraries, then the data chunk by chunk.

Text from a run is never written as markup. Data are base64 in elements that browsers do not run, and the page's
content security policy allows exactly the scripts written here, by their hashes.
"""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from seeupo.utils.atomic_files import atomic_write

PAGE = Path(__file__).with_name("page")
LIBRARIES = Path(__file__).with_name("libraries")
LIBRARY_SCRIPTS = ("d3.min.js", "plot.umd.min.js")
SHARED_SCRIPTS = ("arrays.js", "dom.js", "data.js", "charts.js", "theme.js")


@dataclass(frozen=True)
class Layout:
    """Markup and scripts of a kind of page: files in `page`, the scripts in order."""

    markup: str
    scripts: tuple[str, ...]


REPORT_PAGE = Layout(
    "page.html",
    (
        *SHARED_SCRIPTS,
        "heatmaps.js",
        "overview.js",
        "credit.js",
        "viewer.js",
        "side_by_side.js",
        "list.js",
        "links.js",
        "main.js",
    ),
)
COMPARISON_PAGE = Layout("comparison.html", (*SHARED_SCRIPTS, "comparison.js"))
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, chunks: Mapping[str, bytes], layout: Layout) -> None:
    """Write the page completely or not at all.

    Args:
        chunks: Gzipped JSON by name; of a report: `overview`, `index`, `bodies-0`, `bodies-1` ...
        layout: Kind of page.
    """
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(_skeleton(layout).encode())
        for name, content in chunks.items():
            file.write(b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), b64encode(content)))
        file.write(b"</body>\n</html>\n")


def _skeleton(layout: Layout) -> str:
    """Return everything before the data."""
    libraries = [_read(LIBRARIES / name) for name in LIBRARY_SCRIPTS]
    page_scripts = "\n".join(_read(PAGE / name) for name in layout.scripts)
    scripts = [*libraries, f'"use strict";\n(() => {{\n{page_scripts}}})();\n']
    parts = {
        "policy": _content_security_policy(scripts),
        "style": _read(PAGE / "style.css"),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        "licenses": html.escape(_read(LIBRARIES / "LICENSES.txt")),
    }
    return PLACEHOLDER.sub(lambda match: parts[match[1]], _read(PAGE / layout.markup))


def _content_security_policy(scripts: Iterable[str]) -> str:
    """Return the policy of the page: browsers run these scripts only and load nothing."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = (
        "default-src 'none'",
        f"script-src {hashes}",
        "style-src 'unsafe-inline'",  # charts position their parts by style attributes
        "img-src data:",  # the color bars of heat maps
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # scripts cannot turn text into markup
        "trusted-types 'none'",
    )
    return html.escape("; ".join(rules), quote=False)


def _read(path: Path) -> str:
    """Return a text file with line ends as browsers see them, because the hashes depend on them."""
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")
