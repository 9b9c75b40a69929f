"""Hostile text in every view of the report, those behind clicks included: it is shown as text, and nothing runs."""

from urllib.parse import urlencode

import pytest

from report.hostile_runs import ATTACKS, HUGE, SHOWN, hostile_run
from seeupo.report.payload import report_chunks

INSPECT = """() => {
    const found = [];
    const invisible =
        /[\\u0000-\\u0008\\u000e-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/;
    const addresses = ["href", "src", "action", "formaction", "xlink:href", "srcdoc", "data", "poster", "background"];
    const elements = ["img", "iframe", "object", "embed", "base", "link", "b", "i", "audio", "video", "template"];
    const allowed = (value) => value.startsWith("#") || value.startsWith("data:image/png;base64,");
    const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.nodeType === Node.TEXT_NODE) {
            if (node.parentElement.closest("script, style")) continue;
            if (invisible.test(node.data)) found.push(`text ${node.data}`);
            continue;
        }
        if (elements.includes(node.localName)) found.push(`<${node.localName}>`);
        for (const { name, value } of node.attributes) {
            if (/^on/i.test(name)) found.push(`attribute ${name}`);
            if (addresses.includes(name) && !allowed(value)) found.push(`${name}=${value}`);
            if (!node.closest("head") && invisible.test(value)) found.push(`attribute ${name}=${value}`);
        }
    }
    if (document.querySelectorAll("script:not([type])").length !== 1) found.push("another script");
    if (window.hacked !== undefined) found.push(`hacked ${window.hacked}`);
    if (invisible.test(document.title)) found.push("title");
    return found;
}"""


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """Two runs: one with the script in its name and settings, one with reordered text."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [hostile_run(folder / "<img src=x onerror=alert(1)>\u202e", "script"), hostile_run(folder / "other", "bidi")]
    return report_chunks(runs, max_bytes=25_000_000)[1]


def inspect(page):
    assert page.evaluate(INSPECT) == []


def open_details(page, root=""):
    """Open everything that is collapsed, until nothing is left."""
    while page.locator(f"{root} details:not([open]):visible").count():
        page.locator(f"{root} details:not([open]):visible > summary").first.click()


def options(page, selector):
    return page.locator(f"{selector} option").all_inner_texts()


def test_hostile_text_in_the_overview_curves_and_turns(open_page, chunks):
    page = open_page(chunks).page
    open_details(page, "main")
    for selector in ("#curves", "#turns", "#result"):
        page.locator(selector).scroll_into_view_if_needed()
    inspect(page)
    cards = [page.locator("#cards .card").nth(n).inner_text() for n in range(2)]
    for card, attack in zip(cards, ("script", "bidi"), strict=True):
        for label in ("environment", "key", "panel", "reason"):
            assert f"{label} {SHOWN[attack][:40]}" in card, label
    assert "<img src=x onerror=alert(1)>[U+202E]" in page.inner_text("#title")
    assert f"phase {SHOWN['script'][:40]}" in page.locator("#curves").inner_text()
    assert page.locator("#turns .run-name").count() == 2


def test_hostile_text_in_filters_and_the_list(open_page, chunks):
    page = open_page(chunks).page
    for attack, shown in SHOWN.items():
        assert f"{attack} kind {shown}" in options(page, "select[name=kind]")
        assert f"{attack} stop {shown}" in options(page, "select[name=stop]")
        assert f"{attack} task {shown}" in page.locator("#list tbody").inner_text()
        page.select_option("select[name=kind]", label=f"{attack} kind {shown}")
        page.fill("input[name=task]", shown[:20])
        page.wait_for_selector("#count:text-matches('^12 of 72')")
        inspect(page)
        page.locator("#filters button[type=reset]").click()
        page.wait_for_selector("#count:text-matches('^72 of 72')")
    page.fill("input[name=text]", ATTACKS["image"])
    page.wait_for_selector("#count:text-matches('^12 of 72')")
    page.wait_for_selector("#progress", state="hidden")
    inspect(page)


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_text_in_a_trajectory_and_its_group(open_page, chunks, attack):
    page, shown = open_page(chunks).page, SHOWN[attack]
    page.select_option("select[name=kind]", label=f"{attack} kind {shown}")
    page.select_option("select[name=phase]", label=options(page, "select[name=phase]")[1])
    page.wait_for_selector("#count:text-matches('^4 of 72')")
    seen = ""
    for row in range(2):
        page.locator("#list tbody tr a").nth(row).click()
        page.wait_for_selector("#viewer[open] .credit-trace p")
        open_details(page, "#viewer")
        page.wait_for_selector("#viewer table code")
        inspect(page)
        seen += page.locator("#viewer").inner_text()
        page.locator("#copy-link").click()
        page.locator("#viewer-side").click()
        page.wait_for_selector("#viewer .side")
        open_details(page, "#viewer")
        inspect(page)
        seen += page.locator("#viewer").inner_text()
        page.keyboard.press("Escape")
        page.wait_for_selector("#viewer", state="hidden")
    for label in ("id", "task", "kind", "stop", "action", "opening", "observation", "failure"):
        assert f"{attack} {label} {shown}" in seen, label
    assert "<tool_call>" in seen
    assert "Thought" in seen
    if attack == "script":
        assert seen.count("long ") >= HUGE // 5
    if attack == "image":
        assert "x" * HUGE in seen
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_hostile_text_before_and_after_training(open_page, chunks):
    page = open_page(chunks).page
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compare-content .side")
    for run in range(2):
        page.select_option("#compare-run", index=run)
        tasks = options(page, "#compare-task")
        assert len(tasks) == len(ATTACKS)
        for number, task in enumerate(tasks):
            page.select_option("#compare-task", index=number)
            attack = task.split()[0]
            page.wait_for_selector(f"#compare-content .side .action:has-text('{attack} action')")
            open_details(page, "#compare")
            inspect(page)
            assert f"{attack} observation {SHOWN[attack]}"[:400] in page.inner_text("#compare-content")


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_links_are_shown_as_text(open_page, chunks, attack):
    text = ATTACKS[attack]
    page = open_page(chunks, fragment=urlencode({"run": text, "id": text, "phase": text, "turn": text})).page
    page.wait_for_selector("#problem .note")
    assert SHOWN[attack] in page.inner_text("#problem")
    inspect(page)
