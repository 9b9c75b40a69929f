import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.rollout.reasoning import action_of, without_thoughts


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>use f</think>g()", "g()"),
        ("<think>a</think> one <think>b</think> two ", "one  two"),
        ("g()", "g()"),
        ("", ""),
        ("<think>never closed f()", ""),
        ("f() <think>never closed g()", "f()"),
        ("opened by the template f()</think>g()", "g()"),
        ("a</think>b</think>c", "c"),
        ("<think></think>", ""),
        ("<think>\n<think>f()</think>\ng()", "g()"),
    ],
)
def test_action_is_the_text_outside_of_thoughts(text, action):
    assert action_of(text) == action


@given(st.lists(st.sampled_from(["<think>", "</think>", "f()", " ", "x"]), max_size=12))
def test_actions_contain_no_thought_tags(parts):
    action = action_of("".join(parts))
    assert "<think>" not in action
    assert "</think>" not in action


PIECES = ["<th", "ink>", "</think", ">", ">[", "f()", "]", " ", "thought", "</think>", "<think>", "end"]


def decode(ids):
    return "".join(PIECES[number] for number in ids)


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=14))
def test_later_prompts_show_the_response_after_its_last_thought(ids):
    rest, kept = without_thoughts(ids, decode)
    assert tuple(ids[len(ids) - len(kept) :]) == kept
    assert (rest + decode(kept)).strip() == action_of(decode(ids).rpartition("</think>")[2])


def test_thought_that_ends_within_a_token_keeps_the_rest_as_text():
    assert without_thoughts([10, 8, 2, 4, 5, 6], decode) == ("[", (5, 6))
    assert without_thoughts([10, 8, 9, 5], decode) == ("", (5,))
    assert without_thoughts([5, 6], decode) == ("", (5, 6))
    assert without_thoughts([10, 8, 5], decode) == ("", ())


def test_many_thoughts_are_removed_in_one_pass():
    assert action_of("<think>why</think>a" * 100_000) == "a" * 100_000
