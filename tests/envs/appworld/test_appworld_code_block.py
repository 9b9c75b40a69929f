from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.envs.appworld import code_block
from seeupo.envs.appworld.code_block import FENCE as FENCE_PATTERN
from seeupo.envs.appworld.code_block import first_code_block

FENCE = "```"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("First I look.\n```python\na = 1\nb = 2\n```\nThen I see.", "a = 1\nb = 2"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```py\nprint(1)\n```", "print(1)"),
        ("```Python  \r\nprint(1)\r\n```", "print(1)"),
        ("  ```python\n  print(1)\n  ```", "  print(1)"),
        ("```python\nprint(1)\n```\n```python\nprint(2)\n```", "print(1)"),
        ("```json\n{}\n```\n```python\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
        ("```python\n```", ""),
        ('```python\nx = "```"\n```', 'x = "```"'),
        ("print(1)", None),
        ("`print(1)`", None),
        ("```python print(1)```", None),
        ("", None),
    ],
)
def test_first_block(text, code):
    assert first_code_block(text) == code


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="`\r\n")), st.text())
def test_the_first_fenced_block_is_found_in_any_text(before, code, after):
    before = before.replace("`", "")
    assert first_code_block(f"{before}\n{FENCE}python\n{code}\n{FENCE}\n{after}") == code


@pytest.mark.parametrize("text", ["`" * 999, "```\n" * 999, "```json\n" * 999, "```json\n\n```\n" * 999, " \n" * 999])
def test_every_character_is_searched_at_most_once(monkeypatch, text):
    searched = []

    class Recorder:
        def search(self, text, position):
            match = FENCE_PATTERN.search(text, position)
            searched.append((position, match.end() if match else len(text)))
            return match

    monkeypatch.setattr(code_block, "FENCE", Recorder())
    first_code_block(text)
    assert searched
    assert all(before[1] <= after[0] for before, after in pairwise(searched))
