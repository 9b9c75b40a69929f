"""Write the display at the end of a run as a picture: `python benchmarks/training_picture.py RUN FILE.svg`."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from seeupo.config.loader import read_recipe
from seeupo.runs.run_directory import RECIPE, RunDirectory
from seeupo.training.train_display import Display
from seeupo.utils.terminal import Terminal


def write_picture(run_dir: Path, path: Path, *, width: int = 80) -> None:
    """Write the state of a finished run as an SVG file, with the time that its metrics record."""
    now = 0.0
    display = Display(lambda: now)
    display.title = "seeupo train"
    display.iterations = read_recipe(str(run_dir / RECIPE)).run.total_iterations
    for record in RunDirectory.open(run_dir).metrics():
        timings = record.get("timings") or {}
        now += sum(timings[key] for key in ("collect", "update", "seconds") if key in timings)
        display.on_record(record)
    console = Terminal(file=StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
    console.print(display)
    # An image in a repository must not load anything from a network, not even a font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=display.title), flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    write_picture(Path(sys.argv[1]), Path(sys.argv[2]))
