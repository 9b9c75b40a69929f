"""Tasks of any length with one decisive choice, at an early, middle or late turn.

All actions are mails. The words of all but one are in the request; the day in the remaining one must be looked up right
before it, and the day before the change is the wrong choice. Lengths and positions differ in nothing else.
"""

from __future__ import annotations

from typing import Literal, get_args

from seeupo.envs.pocket.kinds import DONE, EVENT, KINDS, Kind, Step

Decision = Literal["early", "middle", "late"]
FEWEST_CALLS, MOST_CALLS = 3, 8


def mails_kind(calls: int, decision: Decision) -> Kind:
    """Return the kind of this number of calls: the lookup, the mail that needs it, `done`, and plain mails around."""
    plain = calls - FEWEST_CALLS
    before = {"early": 0, "middle": plain // 2, "late": plain}[decision]
    mails = [Step("mail", (f"name_{number}", f"word_{number}")) for number in range(1, plain + 1)]
    terse = [f"mail {{name_{number}}} {{word_{number}}}" for number in range(1, plain + 1)]
    natural = [f'mail the word "{{word_{number}}}" to {{name_{number}}}' for number in range(1, plain + 1)]
    terse.insert(before, "mail {name} the day of {topic}")
    natural.insert(before, "mail the day of the {topic} to {name}")
    given = {"name": "name", "topic": "topic"}
    for number in range(1, plain + 1):
        given |= {f"name_{number}": "name", f"word_{number}": "topic"}
    return Kind(
        f"mails-{calls}-{decision}",
        given=given,
        steps=(*mails[:before], EVENT, Step("mail", ("name", "day")), *mails[before:], DONE),
        choice="day",
        pair=("name", "topic"),
        terse=" ".join(terse),
        natural=(f"In this order: {'; '.join(natural)}.", f"Please {', then '.join(natural)}."),
    )


MAILS = {
    decision: tuple(mails_kind(calls, decision) for calls in range(FEWEST_CALLS, MOST_CALLS + 1))
    for decision in get_args(Decision)
}
ALL_KINDS = KINDS | {kind.name: kind for kinds in MAILS.values() for kind in kinds}
"""Kinds of all tasks, by name."""
