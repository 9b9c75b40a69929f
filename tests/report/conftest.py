"""A browser that opens pages from disk. Without one, the tests that need it are skipped and say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from report.odd_payload import Blocks
from seeupo.report.page import write_page

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window: the one in SEEUPO_CHROMIUM, or on the PATH."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = (os.environ.get("SEEUPO_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no chromium on the PATH")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield opened
        opened.close()


@dataclass
class Opened:
    """A page, and everything that went wrong or left the file while it was open."""

    page: Any
    path: Path
    problems: list[str] = field(default_factory=list)

    def link(self, fragment: str) -> None:
        self.page.goto(f"{self.path.as_uri()}#{fragment}")
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("html[data-ready]")


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Writes blocks as a page and opens it. A test fails at its end if the page complained or asked for anything."""
    contexts: list[Any] = []
    pages: list[Opened] = []

    def make(blocks: Blocks, *, width: int = 1280, theme: str = "light", fragment: str = "", **options: Any) -> Opened:
        path = tmp_path / f"page-{len(pages)}.html"
        write_page(path, blocks)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        opened = Opened(context.new_page(), path)
        pages.append(opened)
        note = opened.problems.append
        opened.page.on("console", lambda message: note(f"console: {message.text}"))
        opened.page.on("pageerror", lambda error: note(f"error: {error}"))
        opened.page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        mine = path.as_uri()
        asked = ("data:", mine)
        opened.page.on("request", lambda request: request.url.startswith(asked) or note(f"request: {request.url}"))
        opened.page.goto(f"{mine}#{fragment}" if fragment else mine)
        opened.ready()
        return opened

    yield make
    for context in contexts:
        context.close()
    assert [problem for opened in pages for problem in opened.problems] == []
