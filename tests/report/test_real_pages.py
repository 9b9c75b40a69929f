"""Reports of real runs in a browser: the default recipe, another algorithm, and a run with every edge case."""

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from report.made_runs import odd_run
from seeupo.config.loader import read_recipe
from seeupo.report.payload import report_chunks
from seeupo.training.run import train


def default_recipe(algorithm):
    """Return the default recipe with fewer iterations."""
    recipe = read_recipe("tiny-pocket", [("algorithm.name", algorithm)])
    return replace(
        recipe,
        run=replace(recipe.run, iterations=2, threads=1),
        collect=replace(recipe.collect, tasks=4),
        evaluation=replace(recipe.evaluation, tasks=6, every=1),
        warm_start=replace(recipe.warm_start, batches=60, episodes=256),
    )


@pytest.fixture(scope="module", params=["seeupo", "ppo", "odd"])
def run(request, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / request.param
    if request.param == "odd":
        return odd_run(run_dir)
    train(default_recipe(request.param), run_dir=run_dir)
    return run_dir


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_every_section_of_a_real_report_works(open_page, run, width, theme):
    overview, chunks = report_chunks([run], max_bytes=25_000_000)
    page = open_page(chunks, width=width, theme=theme).page
    assert page.locator("#cards .card h3").inner_text() == run.name
    total = overview["runs"][0]["trajectories"]["kept"]
    assert page.inner_text("#count").startswith(f"{total:,} of {total:,} ")
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compare-content > *")
    for row in range(min(total, 12)):
        page.locator("#list tbody tr a").nth(row).click()
        page.wait_for_selector("#viewer[open]")
        page.wait_for_selector("#viewer .credit-trace p")
        page.keyboard.press("Escape")
        page.wait_for_selector("#viewer", state="hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_link_opens_a_trajectory_of_a_real_run(open_page, run):
    _, chunks = report_chunks([run], max_bytes=25_000_000)
    page = open_page(chunks).page
    name = page.locator("#list tbody tr").first
    name.locator("a").click()
    page.wait_for_selector("#viewer[open]")
    link = page.evaluate("location.hash")
    assert urlencode({"run": run.name}) in link
    again = open_page(chunks, fragment=link[1:]).page
    again.wait_for_selector("#viewer[open]")
    assert again.inner_text("#viewer h2") == page.inner_text("#viewer h2")
