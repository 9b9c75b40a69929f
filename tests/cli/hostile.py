"""Text that attacks a terminal, an environment full of it, and a check of printed bytes."""

import re

from seeupo.types import Message, StepResult, Task, Tool, ToolCall

NAME = "\x1b]0;title\x07\x1b[2J\x9b2J\rover\b\x7f\u202egnp\u2066\u200b\u2028[bold]b[-bold]\nError: fake"
"""A valid file name."""
TEXT = f"{NAME}\x1b]8;;http://x.example\x1b\\click\x1b]8;;\x1b\\[link=http://x.example]l[/link]:smile:\ud800"
STYLES = re.compile(r"\x1b\[([0-9;]*m|[12]?[AK]|\?25[lh])|\r")
"""Colors and cursor movements of rich."""


def check_printed(output: bytes, *, styled: bool = False) -> str:
    """Return printed bytes as text, after asserting that they contain no control, format or invisible characters."""
    text = output.decode()
    if styled:
        text = STYLES.sub("", text)
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    assert not re.search("^Error: fake", text, re.MULTILINE)
    return text


class HostileEnv:
    """Answers with hostile text; "break" raises it."""

    def reset(self, task, *, seed):
        tool = Tool(TEXT, TEXT, {"properties": {TEXT: {}}})
        self.message = Message("user", TEXT.replace("\n", " "), (ToolCall(TEXT, {TEXT: TEXT}),))
        return StepResult((self.message,), tools=(tool,))

    def step(self, text):
        if text == "break":
            raise RuntimeError(TEXT)
        return StepResult((self.message,), terminated=True)

    def score(self):
        return 1.0

    def close(self): ...


class HostileFactory:
    splits = (f"train{NAME}", "test")

    def tasks(self, split):
        return (Task(TEXT, split, kind=TEXT), Task("plain", split, kind="plain"))

    def make(self):
        return HostileEnv()

    def expert(self, task):
        return lambda result: "break" if task.split == "test" else TEXT
