"""A headless browser that opens pages from disk. Tests that need it are skipped if there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from report.odd_payload import Chunks
from seeupo.report.html_page import REPORT_PAGE, write_page

TIMEOUT = 180_000
"""Milliseconds; generous, because the machine may be busy."""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: the one in SEEUPO_CHROMIUM, or on the PATH."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = (os.environ.get("SEEUPO_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no chromium on the PATH")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=list(FLAGS), timeout=TIMEOUT)
        yield chromium
        chromium.close()


@dataclass
class OpenedPage:
    """A page with the errors, console messages and requests since it was opened."""

    page: Any
    path: Path
    problems: list[str] = field(default_factory=list)

    def link(self, fragment: str) -> None:
        self.page.goto(f"{self.path.as_uri()}#{fragment}")
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready]")


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., OpenedPage]]:
    """Write chunks as a page and open it. The test fails at its end if the page logged or requested anything."""
    contexts: list[Any] = []
    pages: list[OpenedPage] = []

    def make(
        chunks: Chunks, *, width: int = 1280, theme: str = "light", fragment: str = "", **options: Any
    ) -> OpenedPage:
        path = tmp_path / f"page-{len(pages)}.html"
        write_page(path, chunks, REPORT_PAGE)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", **options
        )
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        opened = OpenedPage(context.new_page(), path)
        pages.append(opened)
        note = opened.problems.append
        opened.page.on("console", lambda message: note(f"console: {message.text}"))
        opened.page.on("pageerror", lambda error: note(f"error: {error}"))
        opened.page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        address = path.as_uri()
        allowed = ("data:", address)
        opened.page.on("request", lambda request: request.url.startswith(allowed) or note(f"request: {request.url}"))
        opened.page.goto(f"{address}#{fragment}" if fragment else address)
        if options.get("java_script_enabled", True):
            opened.ready()
        return opened

    yield make
    for context in contexts:
        context.close()
    assert [problem for opened in pages for problem in opened.problems] == []
