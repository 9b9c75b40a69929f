"""One trajectory as the page tells it: what was said turn by turn, and where its credit went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from seeupo.report.packing import finely, rounded
from seeupo.report.token_text import Tokens, has_thought, thought_places, whole_pieces
from seeupo.utils.numbers import finite_number

FINEST = 5
"""Decimals of a token's change, which is shown as a shade."""


def story(record: Mapping[str, Any], rewards: Sequence[float | None], tokens: Tokens | None) -> dict[str, Any]:
    """A line of a trajectories file with its group's rewards, as docs/report.md tells it.

    A record that is not as documented raises a ValueError, TypeError, KeyError or AttributeError.
    """
    known = [reward for reward in rewards if reward is not None]
    turns = record["turns"]
    credits, positions = _credits(record)
    opening, observations = _environment(record, tokens)
    return {
        "group_mean": rounded(math.fsum(known) / len(known)) if known else None,
        "group_size": len(rewards),
        "group_rewards": [rounded(reward) for reward in rewards],
        "opening": opening,
        "turns": [
            {
                **_response(turn, credits.get(index), tokens),
                "observation": observations[index],
                "prompt_tokens": int(turn["shared"]) + len(turn["prompt"]),
                "action_tokens": len(turn["action"]),
                "logprob_before": _sum(turn["logprobs"]),
                "logprob_after": _sum((credits.get(index) or {}).get("new_logprobs")),
                "credit": _credit(credits[index], positions[index]) if index in credits else None,
            }
            for index, turn in enumerate(turns)
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


def _response(turn: Mapping[str, Any], credit: Mapping[str, Any] | None, tokens: Tokens | None) -> dict[str, Any]:
    """Return the sampled response piece by piece, each with the change of its log-prob."""
    if tokens is None:
        whole, thoughts = whole_pieces(str(turn["response"] or ""))
        return {"spans": [[piece, None] for piece in whole], "thought": thoughts}
    ids = turn["action"]
    texts, counts = tokens.pieces(ids)
    changes = _changes(turn["logprobs"], (credit or {}).get("new_logprobs"), counts)
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
    one, other = finite_number(after), finite_number(before)
    return math.nan if one is None or other is None else one - other


def _sum(values: Any) -> float | None:
    """Of log-probs; None if there are none, or one of them is not a finite number."""
    try:
        return rounded(math.fsum(values))
    except (TypeError, ValueError, OverflowError):
        return None


def _environment(record: Mapping[str, Any], tokens: Tokens | None) -> tuple[str, list[str]]:
    """Return the environment's first messages, and its answer to each turn.

    Without texts, the prompts are decoded: they contain the template's special tokens, and nothing follows the last
    turn. A failure is appended to the last answer.
    """
    turns = record["turns"]
    opening, observations = str(record["opening"]), [str(turn["observation"] or "") for turn in turns]
    if not opening and tokens is not None and all(turn["response"] is None for turn in turns):
        prompts = [tokens.decode(turn["prompt"]) for turn in turns]
        opening, observations = (prompts[0] if prompts else ""), [*prompts[1:], ""][: len(turns)]
    if record["failure"] is not None:
        said = f"[failed: {record['failure']['message']}]"
        if observations:
            observations[-1] = f"{observations[-1]}\n{said}".lstrip("\n")
        else:
            opening = f"{opening}\n{said}".lstrip("\n")
    return opening, observations
