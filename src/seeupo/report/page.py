"""Write the report as one HTML file: markup, style, scripts and libraries, then the data chunk by chunk.

Text from a run is never written as markup. Data are base64 in elements that browsers do not run, and the page's
content security policy allows exactly the scripts written here, by their hashes.
"""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from seeupo.errors import ReportError
from seeupo.utils.atomic_files import atomic_write

PAGE = Path(__file__).with_name("page")
LIBRARIES = Path(__file__).with_name("libraries")
LIBRARY_SCRIPTS = ("d3.min.js", "plot.umd.min.js")
SCRIPTS = (
    "dom.js",
    "data.js",
    "charts.js",
    "heatmaps.js",
    "overview.js",
    "credit.js",
    "viewer.js",
    "side_by_side.js",
    "list.js",
    "links.js",
    "main.js",
)
REQUIRED_CHUNKS = ("overview", "index")
CHUNK_NAME = re.compile(r"overview|index|bodies-\d+")
ENDS_SCRIPT = re.compile(r"</script|<!--", re.IGNORECASE)
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, chunks: Iterable[tuple[str, bytes]]) -> None:
    """Write the page completely or not at all, holding one chunk in memory at a time.

    Args:
        chunks: Names (`overview`, `index`, `bodies-0`, `bodies-1` ...) with gzipped JSON, in any order.
    """
    skeleton = _skeleton()
    names = set()
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(skeleton.encode())
        for name, content in chunks:
            if not CHUNK_NAME.fullmatch(name) or name in names:
                raise ReportError(f"chunk {name!r}: expected overview, index or bodies-N, each once")
            names.add(name)
            file.write(b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), b64encode(content)))
        missing = [name for name in REQUIRED_CHUNKS if name not in names]
        if missing:
            raise ReportError(f"the page has no {' and no '.join(missing)}; both are required")
        file.write(b"</body>\n</html>\n")


def _skeleton() -> str:
    """Return everything before the data."""
    page_scripts = "\n".join(_read(PAGE / name) for name in SCRIPTS)
    scripts = [*(_library(name) for name in LIBRARY_SCRIPTS), f'"use strict";\n(() => {{\n{page_scripts}}})();\n']
    for script in scripts:
        if ENDS_SCRIPT.search(script):
            raise ReportError("a script of the page contains </script or <!--, which would end it early")
    parts = {
        "policy": _content_security_policy(scripts),
        "style": _read(PAGE / "style.css"),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        "licenses": html.escape(_library("LICENSES.txt")),
    }
    return PLACEHOLDER.sub(lambda match: parts[match[1]], _read(PAGE / "page.html"))


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


def _library(name: str) -> str:
    path = LIBRARIES / name
    if not path.is_file():
        raise ReportError(
            f"the chart library {name} is not in {LIBRARIES}; installing seeupo fetches it. Install seeupo again "
            "(pip install --force-reinstall --no-deps seeupo, or pip install --no-deps -e . from the sources)"
        )
    return _read(path)


def _read(path: Path) -> str:
    """Return a text file with line ends as browsers see them, because the hashes depend on them."""
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")
