"""One trajectory as the page tells it: what was said turn by turn, and where its credit went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from seeupo.report.packing import finely, number, rounded
from seeupo.report.spans import Tokens, has_thought, thought_places, whole_pieces

FINEST = 5
"""Decimals of a token's change, which is shown as a shade."""


def story(record: Mapping[str, Any], rewards: Sequence[float | None], tokens: Tokens | None) -> dict[str, Any]:
    """A line of a trajectories file with its group's rewards, as docs/report.md tells it.

    A record that is not as documented raises a ValueError, TypeError, KeyError or AttributeError.
    """
    known = [reward for reward in rewards if reward is not None]
    samples, texts = record["samples"], list(map(str, record["texts"]))
    credits, positions = _credits(record)
    opening, observations = _environment(samples, texts, tokens)
    return {
        "group_mean": rounded(math.fsum(known) / len(known)) if known else None,
        "group_size": len(rewards),
        "group_rewards": [rounded(reward) for reward in rewards],
        "opening": opening,
        "turns": [
            {
                **_response(sample, _at(texts, 1 + 2 * turn), credits.get(turn), tokens),
                "observation": observations[turn],
                "prompt_tokens": int(sample["shared"]) + len(sample["prompt"]),
                "action_tokens": len(sample["action"]),
                "logprob_before": _sum(sample["logprobs"]),
                "logprob_after": _sum((credits.get(turn) or {}).get("new_logprobs")),
                "credit": _credit(credits[turn], positions[turn]) if turn in credits else None,
            }
            for turn, sample in enumerate(samples)
        ],
    }


def _credits(record: Mapping[str, Any]) -> tuple[dict[int, Mapping[str, Any]], dict[int, int]]:
    """The credit of each turn, and its place in the order of this trajectory's updates, from 1."""
    entries = (record.get("credit") or {}).get("turns") or ()
    by_turn = {int(entry["turn"]): entry for entry in entries}
    return by_turn, {turn: place for place, turn in enumerate(by_turn, 1)}


def _credit(entry: Mapping[str, Any], position: int) -> dict[str, Any]:
    """What an update did. An algorithm that carries nothing has no M before and after, but a weight of the action."""
    before, after = finely(entry.get("carried_before")), finely(entry.get("carried_after"))
    found = {"ratio": finely(entry.get("ratio")), "clipped": bool(entry.get("clipped"))}
    if after is None:
        return {"position": None, "before": None, "after": None, "weight": before, **found}
    return {"position": position, "before": before, "after": after, **found}


def _response(
    sample: Mapping[str, Any], text: str, credit: Mapping[str, Any] | None, tokens: Tokens | None
) -> dict[str, Any]:
    """What was sampled, piece by piece, each with the change of its log-prob."""
    if tokens is None:
        whole, thoughts = whole_pieces(text)
        return {"spans": [[piece, None] for piece in whole], "thought": thoughts}
    ids = sample["action"]
    texts, counts = tokens.pieces(ids)
    changes = _changes(sample["logprobs"], (credit or {}).get("new_logprobs"), counts)
    return {
        "spans": [[text, change] for text, change in zip(texts, changes, strict=True)],
        "thought": thought_places(texts, [tokens.special(ids[end - count]) for end, count in _ends(counts)])
        if has_thought(texts)
        else [],
    }


def _changes(old: Any, new: Any, counts: Sequence[int]) -> list[float | None]:
    """Per piece of so many tokens, its log-prob after the turn's update minus the one when it was sampled."""
    if not isinstance(old, list) or not isinstance(new, list) or not len(old) == len(new) == sum(counts):
        return [None] * len(counts)
    if _sum(old) is None or _sum(new) is None:
        by_token = [_minus(after, before) for after, before in zip(new, old, strict=True)]
    elif len(counts) == len(new):
        return [round(after - before, FINEST) for after, before in zip(new, old, strict=True)]
    else:
        by_token = [after - before for after, before in zip(new, old, strict=True)]
    sums = [math.fsum(by_token[end - count : end]) for end, count in _ends(counts)]
    return [None if math.isnan(change) else round(change, FINEST) for change in sums]


def _ends(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Per piece, where its tokens end, and how many they are."""
    return zip(accumulate(counts), counts, strict=True)


def _minus(after: object, before: object) -> float:
    one, other = number(after), number(before)
    return math.nan if one is None or other is None else one - other


def _sum(values: Any) -> float | None:
    """Of log-probs; None if there are none, or one of them is no number."""
    try:
        return rounded(math.fsum(values))
    except (TypeError, ValueError, OverflowError):
        return None


def _environment(
    samples: Sequence[Mapping[str, Any]], texts: Sequence[str], tokens: Tokens | None
) -> tuple[str, list[str]]:
    """What the environment said first, and after each turn.

    A failure leaves one text more than there are answers, which goes to the last one. Without any texts, prompts are
    decoded: they have the template's marks in them, and lack what was said after the last turn.
    """
    if not texts and tokens is not None:
        prompts = [tokens.decode(sample["prompt"]) for sample in samples]
        return (prompts[0] if prompts else ""), [*prompts[1:], ""][: len(samples)]
    last = len(samples) - 1
    if last < 0:
        return "\n".join(texts), []
    observations = [_at(texts, 2 + 2 * turn) for turn in range(last)]
    return _at(texts, 0), [*observations, "\n".join(texts[2 + 2 * last :])]


def _at(texts: Sequence[str], place: int) -> str:
    return texts[place] if place < len(texts) else ""
