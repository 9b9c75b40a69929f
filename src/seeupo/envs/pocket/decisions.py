"""Tasks of any length with one decisive choice, at an early, middle or late turn.

All actions are mails except one, which goes by text after a lookup; the wrong choice is to mail it like the others.
Lengths and positions differ in nothing else. The choice does not depend on what was looked up, so a small model can
learn it: comparing two facts, as in the other kinds, takes it much longer.
"""

from __future__ import annotations

from typing import Literal, get_args

from seeupo.envs.pocket.kinds import DONE, KINDS, WHO, Kind, Step

Decision = Literal["early", "middle", "late"]
FEWEST_CALLS, MOST_CALLS = 3, 8


def mails_kind(calls: int, decision: Decision) -> Kind:
    """Return the kind of this number of calls: a lookup, the text that needs it, `done`, and mails around."""
    plain = calls - FEWEST_CALLS
    before = {"early": 0, "middle": plain // 2, "late": plain}[decision]
    mails = [Step("mail", (f"name_{number}", f"word_{number}")) for number in range(1, plain + 1)]
    terse = [f"mail {{name_{number}}} {{word_{number}}}" for number in range(1, plain + 1)]
    natural = [f'mail the word "{{word_{number}}}" to {{name_{number}}}' for number in range(1, plain + 1)]
    terse.insert(before, "text the {role} {topic}")
    natural.insert(before, 'send the word "{topic}" to the {role} as a text message')
    given = {"role": "role", "topic": "topic"}
    for number in range(1, plain + 1):
        given |= {f"name_{number}": "name", f"word_{number}": "topic"}
    return Kind(
        f"mails-{calls}-{decision}",
        given=given,
        steps=(*mails[:before], WHO, Step("channel", ("name", "topic")), *mails[before:], DONE),
        choice="channel",
        pair=("topic", "role"),
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
