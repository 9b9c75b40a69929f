"""Tasks of any length with one decisive choice, at an early, middle or late turn.

All actions are mails except one, which goes by text after a lookup; the wrong choice is to mail it like the others.
Lengths and positions differ in nothing else. The choice does not depend on what was looked up, so a small model can
learn it: comparing two facts, as in the other kinds, takes it much longer.
"""

from __future__ import annotations

from typing import Literal, get_args

from seeupo.envs.pocket.kinds import DONE, EVENT, KINDS, SEND_DAY, Kind, Step

Decision = Literal["early", "middle", "late"]
FEWEST_CALLS, MOST_CALLS = 3, 8


def mails_kind(calls: int, decision: Decision) -> Kind:
    """Return the kind of this number of calls: a lookup, the text that needs it, `done`, and mails around."""
    plain = calls - FEWEST_CALLS
    before = {"early": 0, "middle": plain // 2, "late": plain}[decision]
    mails = [Step("mail", (f"name_{number}", f"word_{number}")) for number in range(1, plain + 1)]
    terse = [f"mail {{name_{number}}} {{word_{number}}}" for number in range(1, plain + 1)]
    natural = [f'mail the word "{{word_{number}}}" to {{name_{number}}}' for number in range(1, plain + 1)]
    terse.insert(before, "text {name} the day of {topic}")
    natural.insert(before, "send the day of the {topic} to {name} as a text message")
    given = {"name": "name", "topic": "topic"}
    for number in range(1, plain + 1):
        given |= {f"name_{number}": "name", f"word_{number}": "topic"}
    return Kind(
        f"mails-{calls}-{decision}",
        given=given,
        steps=(*mails[:before], EVENT, SEND_DAY, *mails[before:], DONE),
        choice="channel",
        pair=("name", "topic"),
        terse=" ".join(terse),
        natural=(f"In this order: {'; '.join(natural)}.", f"Please {', then '.join(natural)}."),
        fixed={"channel": ("text", "mail")},
    )


MAILS = {
    decision: tuple(mails_kind(calls, decision) for calls in range(FEWEST_CALLS, MOST_CALLS + 1))
    for decision in get_args(Decision)
}
ALL_KINDS = KINDS | {kind.name: kind for kinds in MAILS.values() for kind in kinds}
"""Kinds of all tasks, by name."""
