"""Take the screenshots of docs/guides/report.md: `python benchmarks/report_pictures.py RUN` (needs Chromium).

Writes docs/images/report/*.png: the top, the turns, the credit of one trajectory, and its group; the credit also in
dark colors and on a narrow screen. With `--without-m RUN2`, two runs of tiny-credit, it writes the pictures of
docs/tutorials/what-m-does.md instead.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

from seeupo.report.write import write_report
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.types import Trajectory

DOCS = Path(__file__).parent.parent / "docs/images"
PICTURES = DOCS / "report"
SIZES = (("wide-light", 1280, "light"), ("wide-dark", 1280, "dark"), ("narrow-light", 400, "light"))


def example_trajectory(run: Path) -> Trajectory:
    """Return the success of at least three turns whose M changed most, in the first third of training."""
    files = sorted((run / "trajectories").iterdir())
    return max(
        (t for file in files[: 1 + len(files) // 3] for t in read_trajectories(file) if is_long_success(t)),
        key=change_of_m,
    )


def is_long_success(trajectory: Trajectory) -> bool:
    return trajectory.reward == 1 and len(trajectory.turns) >= 3


def change_of_m(trajectory: Trajectory) -> float:
    if trajectory.credit is None or not trajectory.credit.turns or not trajectory.credit.advantage:
        return 0.0
    return abs((trajectory.credit.turns[-1].carried_after or 0.0) / trajectory.credit.advantage - 1)


def take_screenshots(page: Page, name: str, report: Path, link: str) -> None:
    if name == "wide-light":
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / f"top-{name}.png")
        page.locator("#turns").evaluate("section => section.scrollIntoView()")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / f"turns-{name}.png")
    show_credit(page, report, link)
    page.screenshot(path=PICTURES / f"credit-{name}.png")
    if name == "wide-light":
        page.keyboard.press("g")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / f"group-{name}.png")


def show_credit(page: Page, report: Path, link: str) -> None:
    page.goto(f"{report.as_uri()}#{link}")
    page.wait_for_selector("#viewer[open]")
    page.locator("#credit-title").evaluate("title => title.scrollIntoView({block: 'center'})")
    page.wait_for_timeout(500)


def compare_credit(page: Page, report: Path, link: str) -> None:
    """Take the curves of both runs and the credit of a trajectory."""
    folder = DOCS / "tiny-credit"
    folder.mkdir(exist_ok=True)
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.locator("#curves").evaluate("section => section.scrollIntoView()")
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "curves.png")
    show_credit(page, report, link)
    page.screenshot(path=folder / "credit.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--without-m", type=Path, metavar="RUN")
    options = parser.parse_args()
    run: Path = options.run
    runs = [run] if options.without_m is None else [run, options.without_m]
    link = urlencode({"run": run.name, "phase": 0, "id": example_trajectory(run).id})
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        report = Path(directory) / "report.html"
        write_report(runs, report)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, scheme in SIZES[:1] if options.without_m else SIZES:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            if options.without_m:
                compare_credit(page, report, link)
            else:
                take_screenshots(page, name, report, link)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
