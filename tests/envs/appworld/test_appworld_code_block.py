import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_what_is_fenced_is_found_whatever_follows(before, code, after):
    before = before.replace("`", "")
    assert first_code_block(f"{before}\n{FENCE}python\n{code}\n{FENCE}\n{after}") == code


@given(st.text(alphabet="`python \n\r\tx\udcff", max_size=200))
def test_never_raises_and_invents_nothing(text):
    code = first_code_block(text)
    assert code is None or code in text


def test_long_texts_take_linear_time():
    for text in ("`" * 10**6, "```\n" * 250_000, " " * 10**6, "```python" * 10**5, "\n" * 10**6):
        first_code_block(text)
