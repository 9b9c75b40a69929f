from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import seeupo.report.html_page as page_module
from campaigns import nightly_except
from report import odd_payload
from report.conftest import OpenedPage
from seeupo.report.html_page import PAGE, write_page

OpenPage = Callable[..., OpenedPage]
HOSTILE_ID = f"{odd_payload.HOSTILE_NAME}#&=%20+/\u202e"


def fragment(name: str, *, run: str = "odd-run", phase: int = 0, turn: int | None = None) -> str:
    parts: dict[str, Any] = {"run": run, "phase": phase, "id": name}
    return urlencode(parts | ({} if turn is None else {"turn": turn}))


def keep_messages(page: Any) -> None:
    """Keep messages at the bottom of the page visible, so that tests do not race their timer."""
    page.evaluate("() => { window.setTimeout = () => 0 }")


def count_of(opened: OpenedPage) -> int:
    return int(opened.page.inner_text("#count").split()[0].replace(",", ""))


def until_count(opened: OpenedPage, wanted: int) -> None:
    opened.page.wait_for_selector(f"#count:text-matches('^{wanted:,} of ')")
    opened.page.wait_for_selector("#progress", state="hidden")


# Writing


def test_scripts_do_not_end_their_element() -> None:
    for path in PAGE.glob("*.js"):
        assert not re.search(r"</script|<!--", path.read_text(encoding="utf-8"), re.IGNORECASE), path.name


def test_same_chunks_give_the_same_bytes(tmp_path: Path) -> None:
    chunks = odd_payload.odd_chunks()
    write_page(tmp_path / "one.html", chunks, page_module.REPORT_PAGE)
    write_page(tmp_path / "two.html", chunks, page_module.REPORT_PAGE)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_functions_of_arrays_ignore_what_is_no_number(open_page: OpenPage) -> None:
    """The scripts of the page are private to it, so this one is loaded again."""
    page = open_page(odd_payload.empty_page(), bypass_csp=True).page
    page.add_script_tag(content=(PAGE / "arrays.js").read_text().replace("const arrays", "window.arrays"))
    values = "[null, 2, NaN, undefined, -1, 2, 10, 0.5]"
    expected = {
        f"extent({values})": [-1, 10],
        f"mean({values})": 2.7,
        f"max({values}, x => x === 10 ? null : x)": 2,
        f"quantile({values}, 0.25)": 0.5,
        f"quantile({values}, 0.9)": 6.8,
        "quantile([3], 0.98)": 3,
        f"sort({values}, x => x).slice(0, 5)": [-1, 0.5, 2, 2, 10],
        "range(-1, 3)": [-1, 0, 1, 2],
    }
    for call, value in expected.items():
        assert page.evaluate(f"arrays.{call}") == pytest.approx(value), call
    assert page.evaluate("[...arrays.group([5, 4, 4, 1], x => x > 4)]") == [[True, [5]], [False, [4, 4, 1]]]


def test_scripts_never_turn_text_into_markup() -> None:
    """The browser would refuse it, too; this test names the file."""
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b"
    )
    for path in PAGE.glob("*.js"):
        assert not banned.search(path.read_text()), path.name


def test_every_script_is_part_of_the_page() -> None:
    assert {path.name for path in PAGE.glob("*.js")} == {
        *page_module.REPORT_PAGE.scripts,
        *page_module.COMPARISON_PAGE.scripts,
    }


# Opening


@pytest.mark.parametrize("name", ["odd_chunks", "several_runs", "one_iteration", "empty_page"])
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_open_without_errors_and_never_scroll_sideways(open_page: OpenPage, name: str, width: int) -> None:
    opened = open_page(getattr(odd_payload, name)(), width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    links = opened.page.locator("#list a")
    for number in range(links.count()):
        opened.page.evaluate("n => document.querySelectorAll('#list a')[n].click()", number)
        opened.page.wait_for_selector("#viewer[open]")
        opened.page.keyboard.press("g")
        opened.page.wait_for_selector("#viewer-inside[aria-label='Group side by side']")
        assert opened.page.evaluate("document.getElementById('viewer').scrollWidth") <= width
        opened.page.keyboard.press("g")
        opened.page.wait_for_selector("#viewer-inside[aria-label='One attempt']")
        inside = opened.page.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.getElementById('viewer-inside'))")
        assert inside[0] == inside[1]
        opened.page.keyboard.press("Escape")


def test_overview_shows_verdict_scores_and_warnings(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks()).page
    card = page.locator("#cards .card")
    text = card.inner_text()
    assert page.title().startswith("odd-run")
    assert "tiny on pocket solves 0.82" in text
    assert "The run was killed: there is no summary." in text
    assert "7 warnings" in text
    assert "0.220" in text
    assert "+0.600" in text
    assert card.locator(".verdict").inner_text().endswith("Improved")


def test_charts_have_a_table_of_values(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks()).page
    panel = page.locator("#curves .panel", has=page.get_by_role("heading", name="Time"))
    panel.locator("summary").click()
    panel.locator("tbody tr").first.wait_for()
    assert panel.locator("tbody tr").count() == 12 + 12 + 5
    assert page.locator("#curves .panel").count() == 6, "a chart without any number is left out"


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_charts_are_drawn_without_scripts_at_every_width(
    open_page: OpenPage, width: int, theme: str, scripts: bool
) -> None:
    opened = open_page(odd_payload.odd_chunks(), width=width, theme=theme, java_script_enabled=scripts)
    boxes = [plot.bounding_box() for plot in opened.page.locator(".chart > .plot").all()]
    assert len(boxes) == 1 + 6 + 4
    lines = [line.bounding_box() for line in opened.page.locator("#curves .plot .line").all()]
    assert len(lines) == 8
    assert all(line["width"] > 0.5 * box["width"] for line, box in zip(lines[:1], boxes[1:], strict=False))
    for box in [*boxes, *lines]:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["width"] > 100
    assert "solves 0.82" in opened.page.inner_text("#cards")
    assert opened.page.locator("#turns image").count() == 4


def test_a_tooltip_names_the_nearest_point(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks()).page
    entropy = page.locator("#curves .panel", has=page.get_by_role("heading", name="Entropy")).locator(".chart")
    dot = entropy.locator(".dot").nth(3)
    dot.hover()
    assert entropy.locator(".tip").inner_text().startswith("training\niteration 4: 0.8")
    ratio = page.locator("#turns .panel", has=page.get_by_role("heading", name="Ratio")).locator(".chart")
    ratio.scroll_into_view_if_needed()
    box = ratio.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 2.5 / 12 * box["width"], box["y"] + 1.5 / 5 * box["height"])
    assert ratio.locator(".tip").inner_text().startswith("iteration 3, turn 2\nRatio: ")
    page.mouse.move(0, 0)
    assert page.locator(".tip").count() == 0


def test_several_runs_share_charts(open_page: OpenPage) -> None:
    page = open_page(odd_payload.several_runs()).page
    assert page.locator("#curves-legend .legend-entry").all_inner_texts() == ["first", "second", "third"]
    assert page.get_by_role("heading", name="Time: collect").count() == 1
    assert page.locator("#turns .run-name").all_inner_texts() == ["first", "second", "third"]
    assert page.locator("#turns .panel").count() == 4 + 4
    assert "no metrics by turn" in page.locator("#turns .note").inner_text()


def test_empty_report_shows_messages(open_page: OpenPage) -> None:
    page = open_page(odd_payload.empty_page()).page
    assert "no trajectories" in page.inner_text("#list")
    assert "nothing to compare" in page.inner_text("#compare")
    assert "no metrics" in page.inner_text("#curves")


def test_layout_does_not_shift_while_loading(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks())
    shift = """() => new Promise(done => {
        let sum = 0;
        const add = list => list.getEntries().forEach(entry => sum += entry.value);
        new PerformanceObserver(add).observe({type: 'layout-shift', buffered: true});
        requestAnimationFrame(() => requestAnimationFrame(() => done(sum)));
    })"""
    assert opened.page.evaluate(shift) < 0.01


def test_large_report_opens(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.large_chunks(iterations=40, filler=300))
    assert count_of(opened) == 4000
    assert opened.page.locator("#list tbody tr").count() == 50
    opened.page.click("#more")
    assert opened.page.locator("#list tbody tr").count() == 100


def test_truncated_file_shows_an_error(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks())
    content = opened.path.read_text()
    opened.path.write_text(content[: content.index('<script type="text/plain" id="index">')])
    opened.page.goto(opened.path.as_uri() + "?again")
    opened.page.wait_for_selector("#problem .note")
    assert "cannot be shown" in opened.page.inner_text("#problem")
    assert [problem for problem in opened.problems if "missing" in problem] == opened.problems
    opened.problems.clear()


# Filters


FILTERS = [
    ("phase", "0", 12),
    ("phase", "1", 4),
    ("kind", "1", 7),
    ("kind", "2", 2),
    ("reward", "solved", 5),
    ("reward", "partly", 1),
    ("reward", "failed", 12),
    ("reward", "none", 2),
    ("stop", "1", 4),
    ("status", "1", 2),
    ("from", "3", 6),
    ("to", "1", 10),
    ("task", "FIND", 4),
    ("task", "<b on", 1),
    ("text", "YOU SAID nothing", 1),
    ("text", "window.hacked = 1", 1),
    ("text", "天気", 1),
    ("text", "find the color", 4),
    ("text", "not anywhere", 0),
]


def test_every_filter(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks())
    for name, value, wanted in FILTERS:
        until_count(opened, 20)
        field = opened.page.locator(f"#filters [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
        until_count(opened, wanted)
        assert opened.page.locator("#list a").count() == wanted, (name, value)
        opened.page.get_by_role("button", name="Reset").click()
    named = opened.page.locator("#filters [name]").evaluate_all("fields => fields.map(field => field.name)")
    assert {name for name, _, _ in FILTERS} == set(named) - {"order"}


def test_filters_combine(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.several_runs())
    opened.page.select_option("[name=run]", label="second")
    until_count(opened, 2)
    opened.page.select_option("[name=reward]", "solved")
    until_count(opened, 1)


def pause_searches(page: Any) -> None:
    """Stop searches after their first chunk, where they yield to the browser, until `resumeSearches` is called."""
    page.evaluate("""() => {
        const real = window.setTimeout;
        const paused = [];
        window.setTimeout = (work, delay) => delay === undefined ? paused.push(work) : real(work, delay);
        window.resumeSearches = () => { window.setTimeout = real; paused.forEach(work => work()) };
    }""")


def test_latest_search_wins(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.large_chunks(iterations=40, filler=300))
    pause_searches(opened.page)
    opened.page.fill("[name=text]", "let me look")
    opened.page.wait_for_selector("#count:text-matches('^200 of .*searching')")
    opened.page.fill("[name=text]", "not anywhere at all")
    opened.page.wait_for_selector("#count:text-matches('^0 of .*searching')")
    opened.page.evaluate("resumeSearches()")
    until_count(opened, 0)
    opened.page.fill("[name=text]", "results for")
    until_count(opened, 4000)


def test_search_can_be_stopped(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.large_chunks(iterations=4, filler=300))
    pause_searches(opened.page)
    opened.page.fill("[name=text]", "not anywhere at all")
    opened.page.wait_for_selector("#progress", state="visible")
    opened.page.click("#stop-search")
    opened.page.wait_for_selector("#count:text('stopped')")


def test_list_order(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks())
    opened.page.select_option("[name=order]", "advantage-down")
    opened.page.wait_for_selector("#list tbody tr:first-child:has-text('+1.5')")
    opened.page.select_option("[name=order]", "advantage-up")
    opened.page.wait_for_selector("#list tbody tr:first-child:has-text('\u22120.9')")
    opened.page.select_option("[name=order]", "turns-down")
    opened.page.wait_for_selector("#list tbody tr:first-child:has-text('long-way')")


# One trajectory


def test_credit_is_shown_in_update_order(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment("a-1")).page
    text = page.locator("#viewer .credit-trace").inner_text()
    assert "reward of 0" in text
    assert "mean of 0.375" in text
    assert "A = \u22120.9" in text
    rows = page.locator("#viewer .credit tbody tr")
    assert [row.locator("td").nth(1).inner_text() for row in rows.all()] == ["turn 2", "turn 1"]
    first, second = rows.all_inner_texts()
    assert re.search(r"\u22120\.9\b.*1\.02.*inactive.*\u22120\.918", first, re.DOTALL)
    assert "against its weight" in first
    assert re.search(r"\u22120\.918.*0\.97.*active.*\u22120\.89", second, re.DOTALL)
    assert "3% less likely" in second


def test_step_rewards_do_not_count_as_the_score(open_page: OpenPage) -> None:
    steps = [{**odd_payload.turn(("go", 0.1), credit=(1, 1.1, 0.9, 0.99, False)), "reward": 0.25}]
    payload = odd_payload.Payload(odd_payload.run_overview("run"))
    for name, reward in (("rewarded", 0.25), ("other", 0.0)):
        content = odd_payload.body(steps if reward else steps[:0], [0.25, 0.0], "Go.")
        payload.add(name, content, reward=reward, score=0.0, advantage=0.9 if reward else -0.9, task="t")
    page = open_page(payload.chunks(), fragment=fragment("rewarded", run="run")).page
    assert "0 not solved\nreward 0.25" in page.locator("#viewer .viewer-details").first.inner_text()
    text = page.locator("#viewer .credit-trace").inner_text()
    assert "reward of 0.25; its score is 0, and shaping and step rewards make the difference." in text
    assert "step reward +0.25" in page.locator("#viewer .turn-head").inner_text()
    page.get_by_role("button", name="Group side by side").click()
    assert page.locator("#viewer .side-cell", has_text="step reward +0.25").count() == 1
    page.keyboard.press("Escape")
    page.select_option("[name=reward]", "partly")
    page.wait_for_selector("#list tbody tr:has-text('No trajectory matches')")


def test_effect_is_about_the_whole_action_with_enough_digits(open_page: OpenPage) -> None:
    """A long action may become much less likely although its ratio per token is close to 1."""
    page = open_page(odd_payload.odd_chunks()).page
    assert page.evaluate("typeof ratioText") == "undefined", "scripts define no globals"
    body = odd_payload.body(
        [odd_payload.turn(*[("go ", -0.01)] * 100, credit=(1, 0.99996, 1.5, 1.49994, False))], [0.0, 1.0], "Go."
    )
    payload = odd_payload.Payload(odd_payload.run_overview("run"))
    payload.add("long", body, reward=1.0, advantage=1.5, iteration=1, task="t", kind=0)
    page = open_page(payload.chunks(), fragment=fragment("long", run="run")).page
    row = page.locator("#viewer .credit tbody tr").inner_text()
    assert "0.99996" in row
    assert "+1.4999" in row
    assert "became 63% less likely" in row


@pytest.mark.parametrize(
    ("name", "phase", "words", "rows"),
    [
        ("no-carry", 0, "carries nothing from turn to turn", 2),
        ("no-credit", 0, "No credit was recorded", 0),
        ("failed", 0, "Infrastructure failure: worker lost", 0),
        ("dead-group", 0, "left out of the update", 0),
        ("no-turns", 0, "ended before its first turn", 0),
        ("empty-turn", 0, "No token was sampled", 1),
        ("held-0", 1, "held-out task: it was not trained on", 0),
        ("ten-turns", 0, "10 \u2192\u00a09 \u2192\u00a08", 10),
    ],
)
def test_edge_cases_are_explained(open_page: OpenPage, name: str, phase: int, words: str, rows: int) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment(name, phase=phase)).page
    page.wait_for_selector("#viewer[open]")
    assert words in page.locator("#viewer-inside").text_content()
    assert page.locator("#viewer .credit tbody tr").count() == rows
    if name == "no-carry":
        table = page.locator("#viewer .credit").inner_text()
        assert "M before" not in table
        assert "+0.7" in table
        assert "Order" not in table


def test_tokens_show_their_log_prob_change(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment("a-0")).page
    turn = page.locator("#turn-1")
    assert turn.locator(".thought").inner_text() == "<think>Let me look for box</think>"
    assert turn.locator(".action").inner_text() == 'search("box")'
    token = turn.locator(".token", has_text='"box"')
    assert token.get_attribute("title") == "log-prob \u22120.3"
    assert "down" in token.get_attribute("class")
    assert turn.locator(".token", has_text=")").last.get_attribute("title") is None
    turn.locator("summary", has_text="as a table").click()
    assert turn.locator("tbody tr").nth(5).inner_text().split() == ["6", '"\\"box\\""', "\u22120.3"]


def test_group_side_by_side_marks_the_first_difference(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment("a-1")).page
    page.click("#viewer-side")
    page.wait_for_selector("#viewer .side")
    assert page.locator("#viewer .side-head").count() == 4
    cells = page.locator("#viewer .side-cell")
    assert cells.count() == 8
    assert [cells.nth(n).locator(".shared").inner_text() for n in range(4)] == ['search("b'] * 4
    assert [cells.nth(n).locator(".shared").count() for n in range(4, 8)] == [0] * 4, "turn 2 has no common prefix"
    assert cells.nth(0).locator(".action").inner_text() == 'search("b\u25b8ox")'
    assert "identical to column 1" in cells.nth(1).inner_text()
    assert page.locator("#viewer .side-head.own").inner_text().startswith("Attempt 2")
    page.get_by_role("link", name="Attempt 3").click()
    page.wait_for_selector("#viewer .credit-trace")
    assert "0.5 partly" in page.inner_text("#viewer .viewer-head")


def test_held_out_task_before_and_after_training(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks())
    page = opened.page
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compare .side")
    assert page.locator("#compare-task option").all_inner_texts() == [
        "held-box: 0 \u2192 0.5",
        "held-other: 0 \u2192 0",
    ]
    heads = [head.locator("h4").inner_text() for head in page.locator("#compare .side-head").all()]
    assert heads == ["Before 1", "After 1", "Before 2", "After 2"]
    assert page.locator("#compare .side-cell .shared").nth(4).inner_text() == "answer("
    page.select_option("#compare-task", index=1)
    page.wait_for_selector("#compare .lead:has-text('no change')")


# Links and keys


@pytest.mark.parametrize(("name", "phase", "turn"), [("ten-turns", 0, 7), (HOSTILE_ID, 0, 3), ("held-1", 2, 2)])
def test_links_open_the_right_turn(open_page: OpenPage, name: str, phase: int, turn: int) -> None:
    opened = open_page(odd_payload.odd_chunks(), fragment=fragment(name, phase=phase, turn=turn))
    opened.page.wait_for_selector(f"#turn-{turn}.linked")
    assert opened.page.locator(f"#turn-{turn}").evaluate("e => e.getBoundingClientRect().top < innerHeight")
    opened.link(fragment("a-2", turn=2))
    opened.page.wait_for_selector("#viewer-title:text('find-box')")
    opened.page.wait_for_selector("#turn-2.linked")


def test_link_to_a_missing_trajectory_shows_a_message(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment("gone <img>")).page
    assert '"gone <img>"' in page.inner_text("#problem")
    assert page.locator("#problem img").count() == 0
    assert page.locator("#viewer[open]").count() == 0


@pytest.mark.parametrize("name", ["ten-turns", HOSTILE_ID])
def test_copied_links_lead_back(open_page: OpenPage, name: str) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    opened = open_page(odd_payload.odd_chunks(), fragment=fragment(name), permissions=permissions)
    keep_messages(opened.page)
    opened.page.get_by_role("button", name="Copy link to turn 2").click()
    opened.page.wait_for_selector("#toast:text('Link copied')")
    copied = opened.page.evaluate("navigator.clipboard.readText()")
    assert copied == opened.page.url
    opened.page.goto("about:blank")
    opened.problems.clear()
    opened.page.goto(copied)
    opened.page.wait_for_selector("#turn-2.linked")


def test_command_can_be_copied(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), permissions=["clipboard-read", "clipboard-write"]).page
    keep_messages(page)
    page.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_selector("#toast:text('Command copied')")
    assert page.evaluate("navigator.clipboard.readText()").startswith("seeupo train tiny-pocket")


def test_copying_without_clipboard_permission_is_announced(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks(), fragment=fragment("a-0")).page
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')) }")
    keep_messages(page)
    page.click("#copy-link")
    page.wait_for_selector("#toast:text('Link')")


def test_keyboard_shortcuts(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks()).page
    focused = "document.activeElement.dataset.row"
    for key, wanted in (("j", "0"), ("j", "1"), ("ArrowDown", "2"), ("k", "1"), ("ArrowUp", "0")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == wanted
    page.keyboard.press("Enter")
    page.wait_for_selector("#viewer[open] .at:text('1 of 20')")
    page.keyboard.press("j")
    page.wait_for_selector("#viewer .at:text('2 of 20')")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#viewer .at:text('3 of 20')")
    page.keyboard.press("k")
    page.wait_for_selector("#viewer .at:text('2 of 20')")
    assert "id=a-1" in page.url
    page.keyboard.press("g")
    page.wait_for_selector("#viewer .side")
    page.keyboard.press("Escape")
    page.wait_for_selector("#viewer:not([open])", state="attached")
    assert page.evaluate(focused) == "1"
    assert "id=" not in page.url
    page.focus("[name=text]")
    page.keyboard.type("jk")
    assert page.input_value("[name=text]") == "jk"


def test_browser_back_closes_the_viewer(open_page: OpenPage) -> None:
    page = open_page(odd_payload.odd_chunks()).page
    page.locator("#list a").first.click()
    page.wait_for_selector("#viewer[open]")
    page.go_back()
    page.wait_for_selector("#viewer:not([open])", state="attached")


def test_theme_follows_the_system_until_chosen(open_page: OpenPage) -> None:
    page = open_page(odd_payload.empty_page(), theme="dark").page
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.click("#theme")
    assert page.evaluate(color) != dark


# Hostile text


def test_hostile_text_stays_text(open_page: OpenPage) -> None:
    opened = open_page(odd_payload.odd_chunks(), fragment=fragment(HOSTILE_ID))
    page = opened.page
    page.wait_for_selector("#viewer[open]")
    action = page.locator("#turn-1 .action").inner_text()
    assert odd_payload.HOSTILE in action
    assert "safe[U+202E]gnp.exe[U+202C] and \u2400 nul, [U+200B] nothing, \ufffd lost" in action
    assert odd_payload.NON_LATIN in page.locator("#turn-2 .action").inner_text()
    page.keyboard.press("g")
    page.wait_for_selector("#viewer .side")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, b").count() == 0
    assert page.locator("script:not([type])").count() == 1


def test_security_policy_blocks_scripts_markup_and_network(open_page: OpenPage) -> None:
    """An injected script would not run, and could not reach the network."""
    opened = open_page(odd_payload.empty_page())
    refused = opened.page.evaluate("""async () => {
        const refused = [];
        const script = document.createElement('script');
        try { script.text = 'window.hacked = 1'; document.body.append(script); } catch { refused.push('text') }
        try { document.body.innerHTML = '<p>'; } catch { refused.push('markup') }
        try { await fetch('http://127.0.0.1:9/'); } catch { refused.push('network') }
        return [...refused, window.hacked === undefined];
    }""")
    assert refused == ["text", "markup", "network", True]
    opened.problems.clear()


# Accessibility


@pytest.mark.parametrize(
    ("theme", "width"),
    nightly_except([("light", 1280), ("dark", 400)], itertools.product(["light", "dark"], [1280, 400])),
)
def test_page_has_no_serious_accessibility_violations(open_page: OpenPage, theme: str, width: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()

    def check(opened: OpenedPage) -> None:
        found = axe.run(opened.page).response["violations"]
        serious = [
            (each["id"], [node["html"] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []

    opened = open_page(odd_payload.odd_chunks(), theme=theme, width=width, bypass_csp=True)
    check(opened)
    for details in opened.page.locator("details").all():
        details.evaluate("details => { details.open = true }")
    check(opened)
    for name in ("a-1", "no-carry", HOSTILE_ID):
        opened.link(fragment(name))
        opened.page.wait_for_selector("#viewer[open]")
        check(opened)
    opened.page.keyboard.press("g")
    opened.page.wait_for_selector("#viewer .side")
    check(opened)
    several = open_page(odd_payload.several_runs(), theme=theme, width=width, bypass_csp=True)
    check(several)
