"""The report as one HTML file: page, style, scripts and libraries inside, then the data block by block.

Nothing that comes from a run is written as markup: data are base64 in blocks that no browser runs, and the page's
policy allows exactly the scripts that are written here, by their hashes.
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
    "text.js",
    "data.js",
    "charts.js",
    "heatmaps.js",
    "top.js",
    "story.js",
    "trajectory.js",
    "side_by_side.js",
    "list.js",
    "links.js",
    "main.js",
)
REQUIRED_BLOCKS = ("overview", "index")
BLOCK_NAME = re.compile(r"overview|index|bodies-\d+")
ENDS_SCRIPT = re.compile(r"</script|<!--", re.IGNORECASE)
PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, blocks: Iterable[tuple[str, bytes]]) -> None:
    """Write the page whole or not at all, holding one block in memory at a time.

    Args:
        blocks: names (`overview`, `index`, `bodies-0`, `bodies-1` ...) with gzipped JSON, in any order.
    """
    skeleton = _skeleton()
    names = set()
    with atomic_write(path) as partial, partial.open("wb") as file:
        file.write(skeleton.encode())
        for name, packed in blocks:
            if not BLOCK_NAME.fullmatch(name) or name in names:
                raise ReportError(f"block {name!r} is twice in the page, or is not one of overview, index, bodies-N")
            names.add(name)
            file.write(b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), b64encode(packed)))
        missing = [name for name in REQUIRED_BLOCKS if name not in names]
        if missing:
            raise ReportError(f"the page has no block {' and no block '.join(missing)}; both are needed")
        file.write(b"</body>\n</html>\n")


def _skeleton() -> str:
    """Everything before the data."""
    own = "\n".join(_read(PAGE / name) for name in SCRIPTS)
    scripts = [*(_library(name) for name in LIBRARY_SCRIPTS), f'"use strict";\n(() => {{\n{own}}})();\n']
    for script in scripts:
        if ENDS_SCRIPT.search(script):
            raise ReportError("a script of the page holds </script or <!--, which would end it where it is inlined")
    parts = {
        "policy": _policy(scripts),
        "style": _read(PAGE / "style.css"),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        "licences": html.escape(_library("LICENSES.txt")),
    }
    return PLACE.sub(lambda place: parts[place[1]], _read(PAGE / "page.html"))


def _policy(scripts: Iterable[str]) -> str:
    """What the browser lets this page do: run these scripts, and load nothing from anywhere."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = (
        "default-src 'none'",
        f"script-src {hashes}",
        "style-src 'unsafe-inline'",  # charts position their parts by style
        "img-src data:",  # the colour bars of heat maps
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # text cannot become markup, whatever a script does
        "trusted-types 'none'",
    )
    return html.escape("; ".join(rules), quote=False)


def _library(name: str) -> str:
    path = LIBRARIES / name
    if not path.is_file():
        raise ReportError(
            f"the chart library {name} is not in {LIBRARIES}. It is fetched when seeupo is installed: install it again "
            "(pip install --force-reinstall --no-deps seeupo, or pip install --no-deps -e . from the sources)"
        )
    return _read(path)


def _read(path: Path) -> str:
    """A text file with its line ends as a browser sees them, as hashes are taken of that."""
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")
