"""Parsing replies into commands; no game is needed."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.textworld import hostile
from seeupo.envs.textworld.commands import LONGEST_COMMAND, SHORT_FORMS, VERBS, CommandError, read_command


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("look", "look"),
        ("  take Canadian key  ", "take Canadian key"),
        ("> open box", "open box"),
        ("take   key \t", "take key"),
        ("The key is in the box; so I open it.\n\nopen box\n", "open box"),
        ("save\nrestart\nn", "n"),
        ("insert non-euclidean key into cook's box", "insert non-euclidean key into cook's box"),
        ("GO North", "GO North"),
        ("take type 1 key", "take type 1 key"),
    ],
)
def test_commands_are_read(reply, command):
    assert read_command(reply) == command


@pytest.mark.parametrize("command", hostile.STRANGE)
def test_unusual_commands_are_accepted(command):
    assert read_command(command) == command


@pytest.mark.parametrize("reply", hostile.REFUSED, ids=lambda reply: repr(reply[:30]))
def test_other_replies_are_rejected_with_a_short_message(reply):
    with pytest.raises(CommandError) as error:
        read_command(reply)
    assert 10 < len(str(error.value)) < 300


def test_there_are_enough_hostile_replies():
    assert len(set(hostile.REFUSED)) >= 100


@given(
    st.one_of(st.text(), st.from_regex(r"[a-z]{1,6}[ .,'>\n-][a-z ]{0,9}"), st.sampled_from(VERBS).map("{} ".format))
)
@example("look\n")
@example("n")
def test_accepted_commands_are_plain_words_that_start_with_a_verb(reply):
    try:
        command = read_command(reply)
    except CommandError:
        return
    words = command.split(" ")
    assert words[0].lower() in {*VERBS, *SHORT_FORMS}
    assert all(re.fullmatch(r"[A-Za-z0-9'-]+", word) for word in words)
    assert "then" not in command.lower().split(" ")
    assert len(command) <= LONGEST_COMMAND
    assert read_command(command) == command
