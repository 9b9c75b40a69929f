"""Write the page of a comparison of arms, from its tables as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seeupo.errors import RunError
from seeupo.report.html_page import COMPARISON_PAGE, write_page
from seeupo.report.packing import gzipped_json


def write_comparison(table: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison, completely or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, [("comparison", gzipped_json(table))], COMPARISON_PAGE)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}; choose a writable file") from error
