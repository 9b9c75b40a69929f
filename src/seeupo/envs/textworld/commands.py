"""Parse an action into a game command: one line of plain words that starts with a verb of the game.

The game interpreter has other commands that a policy must not reach: `save` and `script` write files, a backslash
makes it print forever, `restart` and `restore` change the past, `print_state` and `tw-...` reveal hidden state,
`superbrief` shortens observations, a full stop or "then" starts another command. So only commands that are known to be
harmless are passed on.
"""

from __future__ import annotations

import re

VERBS = (
    *("look", "goal", "inventory", "go", "examine", "open", "close"),
    *("unlock", "lock", "take", "drop", "put", "insert", "eat"),
)
SHORT_FORMS = ("north", "south", "east", "west", "n", "s", "e", "w", "l", "i", "x", "get", "pick")
LONGEST_COMMAND = 120  # the interpreter has room for 198 characters
PLAIN_WORDS = re.compile(r"[A-Za-z0-9]+(?:['-][A-Za-z0-9]+)*(?: [A-Za-z0-9]+(?:['-][A-Za-z0-9]+)*)*")


class CommandError(Exception):
    """The text contains no command; the message is part of the observation."""


def read_command(text: str) -> str:
    """Return the command in an action: its last nonblank line, without a leading prompt sign `>`."""
    lines = text.strip().rsplit("\n", 1)
    command = lines[-1].strip().removeprefix(">").strip()
    if not command:
        raise CommandError("the last line of the reply should be a command, such as: look")
    if len(command) > LONGEST_COMMAND:
        raise CommandError(f"a command has at most {LONGEST_COMMAND} characters, this one has {len(command)}")
    command = re.sub(" +", " ", command)
    if not PLAIN_WORDS.fullmatch(command):
        raise CommandError("a command is made of plain words, such as: open box")
    words = command.lower().split(" ")
    if words[0] not in VERBS and words[0] not in SHORT_FORMS:
        raise CommandError(f"{words[0]!r} is no verb of this game; there are: {', '.join(VERBS)}")
    if "then" in words:
        raise CommandError("one command at a time, without 'then'")
    return command
