"""What a policy may say to a game: one line of plain words that begins with a verb of the game.

The interpreter under a game has commands of its own, and they are not for players: `save` and `script` write files, a
backslash makes it print without end, `restart` and `restore` change the past, `print_state` and `tw-...` show what is
hidden, `superbrief` shortens what is seen, a full stop or "then" begins another command. So nothing is passed on but
what is known to be harmless.
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
    """Why a text holds no command; the message is for the policy."""


def read_command(text: str) -> str:
    """The command in an action: its last line that is not blank, without the prompt sign `>` before it."""
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
