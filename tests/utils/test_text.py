import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.utils.text import counted, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("over\rwritten\b\x7f\x00", r"over\rwritten\x08\x7f\x00"),
        ("safe\u202egnp.exe\u2066", r"safe\u202egnp.exe\u2066"),
        ("zero\u200bwidth\ufeff\u2060\u00ad", r"zero\u200bwidth\ufeff\u2060\xad"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("half \ud83d, undecoded \udcff", r"half \ud83d, undecoded \udcff"),
        ("tags \U000e0041, fillers \u3164\u115f", r"tags \U000e0041, fillers \u3164\u115f"),
        ("not an emoji: a\ufe0f b\u200dc", r"not an emoji: a\ufe0f b\u200dc"),
    ],
)
def test_control_and_invisible_characters_become_visible(text, shown):
    assert visible(text) == one_line(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "naïve e\u0301 Ångström 10\u00a0€",
        "搜索　“天気” ثم اكتب สวัสดี हिन्दी",
        "🙂👩‍🚀👩🏽‍🚀👩‍❤️‍👨🏳️‍🌈 1️⃣ ↔️",
        r"[bold] \x1b C:\new",
    ],
)
def test_ordinary_text_is_unchanged(text):
    assert visible(text) == one_line(text) == text


def test_line_breaks_and_tabs_are_layout_except_on_one_line():
    assert visible("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb") == r"a\n\tb"


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_no_control_or_format_character_remains(text):
    shown = one_line(text)
    assert visible(shown) == shown
    assert {unicodedata.category(letter) for letter in shown} & {"Cc", "Cs", "Zl", "Zp", "Cn", "Co"} == set()
    assert {letter for letter in shown if unicodedata.category(letter) == "Cf"} <= {"\u200d"}
    shown.encode()


def test_every_character_is_escaped_or_has_a_glyph():
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert one_line(letter).startswith("\\"), hex(code)


@pytest.mark.parametrize(("count", "text"), [(0, "0 turns"), (1, "1 turn"), (2, "2 turns")])
def test_counts_agree_with_their_noun(count, text):
    assert counted(count, "turn") == text
