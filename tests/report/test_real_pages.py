"""Pages of real run folders in a browser: the default recipe, other algorithms, and a run with every odd case."""

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from report.made_runs import odd_run
from seeupo import train
from seeupo.config.loader import read_recipe
from seeupo.report.contents import report_blocks


def default_recipe(algorithm):
    """The default recipe as a user has it, only shorter."""
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
    folder = tmp_path_factory.mktemp("runs") / request.param
    return odd_run(folder) if request.param == "odd" else train(default_recipe(request.param), folder=folder).folder


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_a_real_run_can_be_looked_at_from_top_to_bottom(open_page, run, width, theme):
    with report_blocks([run], max_bytes=25_000_000) as (overview, blocks):
        kept = list(blocks)
    page = open_page(kept, width=width, theme=theme).page
    assert page.locator("#cards .card h3").inner_text() == run.name
    total = overview["runs"][0]["trajectories"]["kept"]
    assert page.inner_text("#count").startswith(f"{total:,} of {total:,} ")
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compare-content > *")
    for row in range(min(total, 12)):
        page.locator("#list tbody tr a").nth(row).click()
        page.wait_for_selector("#viewer[open]")
        page.wait_for_selector("#viewer .story p")
        page.keyboard.press("Escape")
        page.wait_for_selector("#viewer", state="hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_a_link_opens_the_trajectory_of_a_real_run(open_page, run):
    with report_blocks([run], max_bytes=25_000_000) as (_, blocks):
        kept = list(blocks)
    page = open_page(kept).page
    name = page.locator("#list tbody tr").first
    name.locator("a").click()
    page.wait_for_selector("#viewer[open]")
    link = page.evaluate("location.hash")
    assert urlencode({"run": run.name}) in link
    again = open_page(kept, fragment=link[1:]).page
    again.wait_for_selector("#viewer[open]")
    assert again.inner_text("#viewer h2") == page.inner_text("#viewer h2")
