"""The page of a comparison in a browser."""

import numpy as np
import pytest

from comparison.small_study import made_result
from report.conftest import TIMEOUT
from seeupo.comparison.analysis import METRICS, arm_summary, pairwise_differences
from seeupo.report.write import write_comparison

HOSTILE = "<img src=x onerror=alert(1)>"


def made_table(seeds=4, arms=("seeupo", "grpo", "ppo")):
    """Return the tables of a made-up comparison with hostile texts."""
    rng = np.random.default_rng(0)
    results = {
        arm: [
            made_result((0.3 + 0.1 * n + 0.02 * rng.standard_normal(12)).tolist(), evaluations=[[6, 0.4], [12, 0.5]])
            for _ in range(seeds)
        ]
        for n, arm in enumerate(arms)
    }
    return {
        "format": "seeupo-comparison",
        "version": 1,
        "study": HOSTILE,
        "k": 4,
        "iterations": 12,
        "seeds": list(range(seeds)),
        "tuning_seeds": [9],
        "match": {"quantity": "optimizer_steps", "target": 48.0, "spent": dict.fromkeys(arms, 1.0)},
        "metrics": {key: {"title": title, "help": text} for key, (title, text, _) in METRICS.items()},
        "primary": "reward_auc",
        "reference": arms[0],
        "arms": [
            {
                "name": arm,
                "settings": [["algorithm.name", HOSTILE]],
                "tuned": {"optimizer.learning_rate": 1e-3},
                "tried": [{"settings": {"optimizer.learning_rate": 1e-3}, "scores": [0.5]}],
                **arm_summary(found, 12),
            }
            for arm, found in results.items()
        ],
        "comparisons": pairwise_differences(results, 12),
        "statistics": "Statistics.",
        "summary": "reward AUC against seeupo",
        "sentences": [HOSTILE],
        "versions": {"seeupo": "0", "revision": 1},
    }


@pytest.mark.parametrize(("width", "theme", "seeds"), [(1280, "light", 4), (400, "dark", 4), (1280, "dark", 1)])
def test_every_section_of_the_page_works(browser, tmp_path, width, theme, seeds):
    path, problems = tmp_path / "comparison.html", []
    write_comparison(made_table(seeds), path)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert HOSTILE in page.inner_text("#result-card")
    assert page.locator("#result-card tbody tr").count() == 3
    for section in ("curves", "differences", "stability", "settings"):
        page.locator(f"#{section}").scroll_into_view_if_needed()
    page.wait_for_selector("#differences .chart svg")
    assert page.locator("#curves .panel").count() == 3
    assert page.locator("#differences .panel").count() == 3
    chips = set(page.locator("#differences .verdict").all_inner_texts())
    assert chips == ({"Better", "No significant difference"} if seeds > 1 else {"Inconclusive"})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator(".scroll").evaluate_all("boxes => boxes.map(box => box.scrollWidth - box.clientWidth)")
    assert width < 1280 or max(boxes) <= 0, "tables fit"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    context.close()
    assert problems == []


def test_no_two_arms_look_alike(browser, tmp_path):
    path, arms = tmp_path / "comparison.html", tuple(f"arm-{number}" for number in range(15))
    write_comparison(made_table(arms=arms), path)
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    styles = page.locator("#result-card tbody svg line").evaluate_all(
        "lines => lines.map(getComputedStyle).map(style => style.stroke + ' ' + style.strokeDasharray)"
    )
    page.close()
    assert len(styles) == len(set(styles)) == len(arms)
