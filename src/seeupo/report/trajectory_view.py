"""One trajectory as the page shows it: its text turn by turn, and the credit of each turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from seeupo.report.packing import rounded
from seeupo.report.token_text import TokenDecoder, thought_token_ranges

CREDIT_DIGITS = 8
"""Significant digits of ratios and M, so that a value close to 1 does not look like 1."""
CHANGE_DECIMALS = 5
"""Decimals of a token's log-prob change, which is shown as a shade."""


def trajectory_view(
    record: Mapping[str, Any], group_rewards: Sequence[float | None], decoder: TokenDecoder | None
) -> dict[str, Any]:
    """Return the body of a trajectory in the page.

    Args:
        record: Record of a trajectory file, in the current format version.
        group_rewards: Rewards of its group; None for failed attempts.
        decoder: None if there is no tokenizer; responses are then not split into tokens.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: The record is malformed.
    """
    known = [reward for reward in group_rewards if reward is not None]
    credits = {int(entry["turn"]): entry for entry in (record.get("credit") or {}).get("turns") or ()}
    positions = {turn: position for position, turn in enumerate(credits, 1)}
    opening, observations = _environment_texts(record, decoder)
    return {
        "group_mean": rounded(math.fsum(known) / len(known)) if known else None,
        "group_size": len(group_rewards),
        "group_rewards": [rounded(reward) for reward in group_rewards],
        "opening": opening,
        "failure": None if record["failure"] is None else str(record["failure"]["message"]),
        "turns": [
            {
                **_response(turn, credits.get(index), decoder),
                "observation": observations[index],
                "prompt_tokens": int(turn["shared"]) + len(turn["prompt"]),
                "action_tokens": len(turn["action"]),
                "reward": rounded(turn.get("reward", 0.0)),
                "logprob_before": _sum(turn["logprobs"]),
                "logprob_after": _sum((credits.get(index) or {}).get("new_logprobs")),
                "credit": _credit(credits[index], positions[index]) if index in credits else None,
            }
            for index, turn in enumerate(record["turns"])
        ],
    }


def _credit(entry: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the effect of a turn's update, with its position in the update order, from 1.

    An algorithm that carries nothing from turn to turn has a weight instead of M, and no order.
    """
    before, after, ratio = (
        rounded(entry.get(name), CREDIT_DIGITS) for name in ("carried_before", "carried_after", "ratio")
    )
    update = {"ratio": ratio, "clipped": bool(entry.get("clipped"))}
    if after is None:
        return {"position": None, "before": None, "after": None, "weight": before, **update}
    return {"position": position, "before": before, "after": after, **update}


def _response(
    turn: Mapping[str, Any], credit: Mapping[str, Any] | None, decoder: TokenDecoder | None
) -> dict[str, Any]:
    """Return the tokens of a response, each with the change of its log-prob, and which of them are thoughts."""
    if decoder is None:
        text = str(turn["response"] or "")
        return {"tokens": [[text, None]] if text else [], "thoughts": []}
    ids = turn["action"]
    texts, counts = decoder.token_texts(ids)
    changes = _changes(turn["logprobs"], (credit or {}).get("new_logprobs"), counts)
    special = [decoder.is_special(ids[start]) for start, _ in _ranges(counts)]
    return {
        "tokens": [[text, change] for text, change in zip(texts, changes, strict=True)],
        "thoughts": thought_token_ranges(texts, special),
    }


def _changes(old: Any, new: Any, counts: Sequence[int]) -> list[float | None]:
    """Return, per text of `counts` tokens, its log-prob after the turn's update minus the one at sampling."""
    if _sum(old) is None or _sum(new) is None or not len(old) == len(new) == sum(counts):
        return [None] * len(counts)
    by_token = [after - before for after, before in zip(new, old, strict=True)]
    return [round(math.fsum(by_token[start:end]), CHANGE_DECIMALS) for start, end in _ranges(counts)]


def _ranges(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of the tokens of each text."""
    return ((end - count, end) for end, count in zip(accumulate(counts), counts, strict=True))


def _sum(logprobs: Any) -> float | None:
    """Return the sum of log-probs; None if there are none or one of them is not a finite number."""
    try:
        return rounded(math.fsum(logprobs))
    except (TypeError, ValueError, OverflowError):
        return None


def _environment_texts(record: Mapping[str, Any], decoder: TokenDecoder | None) -> tuple[str, list[str]]:
    """Return the environment's first messages, and its answer to each turn.

    If the record has no text, the prompts are decoded: they contain the template's special tokens, and there is no
    answer to the last turn.
    """
    turns = record["turns"]
    if record["opening"] or decoder is None or any(turn["response"] is not None for turn in turns):
        return str(record["opening"]), [str(turn["observation"] or "") for turn in turns]
    prompts = [decoder.decode(turn["prompt"]) for turn in turns]
    return prompts[0] if prompts else "", [*prompts[1:], ""][: len(turns)]
