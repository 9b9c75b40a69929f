"""Drafts for speculative decoding: guess a row's next tokens from what was sampled in this iteration and the last.

A draft is only a guess that is checked in a forward pass, so nothing here changes what is sampled. All decisions follow
from tokens and counts, never from time, so that the same seeds give the same passes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

PASS_TOKENS = 18
"""Cost of a forward pass besides its tokens, in tokens: reading the weights and starting the operations.

Decoding steps of 8 to 64 rows of SmolLM2-135M give 18 with two threads (docs/explanation/performance.md), as with one.
"""
MAX_ROWS = 4 * PASS_TOKENS
"""Number of rows above which nothing is drafted: a token must be kept with a chance of 0.8 to be worth computing."""
MAX_DRAFT = 16
"""Maximum number of draft tokens of a row in a pass."""
PRIOR = 4.0
"""Weight of the share of an n-gram's most frequent continuation in the estimate of its chance, in tokens."""
COPIED_SHARE = 0.5
"""Assumed chance that a row repeats the continuation of an earlier n-gram of its own history."""


@dataclass
class Continuations:
    """Number of times that each token followed a context."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    best: int = -1

    def add(self, token: int) -> None:
        count = self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        if count > self.counts.get(self.best, 0):
            self.best = token

    @property
    def share(self) -> float:
        return self.counts[self.best] / (self.total + 1)


@dataclass
class Guess:
    """A draft token with the chance that it is sampled if those before it are, and the class that the chance is of."""

    token: int
    chance: float
    kind: tuple[str, int]


class DraftHistory:
    """All tokens of a row so far: its prompt and what was sampled."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.bytes = bytearray(array("q", prompt).tobytes())
        self.path = hash(tuple(prompt))

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.bytes += array("q", (token,)).tobytes()
        self.path = hash((self.path, token))

    def cut(self, length: int, path: int) -> None:
        """Return to an earlier state."""
        del self.tokens[length:], self.bytes[8 * length :]
        self.path = path

    def contexts(self) -> list[tuple[str, Hashable]]:
        """Return what the next token may depend on: the whole history, which siblings may share, and its end."""
        return [("path", self.path), ("long", tuple(self.tokens[-6:])), ("short", tuple(self.tokens[-3:]))]

    def copied(self, order: int) -> int | None:
        """Return the token that followed the latest earlier occurrence of the last `order` tokens."""
        pattern, end = bytes(self.bytes[-8 * order :]), len(self.bytes) - 8
        while (start := self.bytes.rfind(pattern, 0, end)) >= 0:
            if start % 8 == 0:
                return self.tokens[start // 8 + order]
            end = start + len(pattern) - 1
        return None


class Drafts:
    """Guesses next tokens by n-gram lookup in what was sampled so far, and learns how often its guesses are right."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all tokens and counts."""
        self._continuations: dict[tuple[str, Hashable], Continuations] = {}
        self._checked: dict[tuple[str, int], tuple[int, int]] = {}

    def observe(self, history: DraftHistory, token: int) -> None:
        """Record a sampled token."""
        for context in history.contexts():
            self._continuations.setdefault(context, Continuations()).add(token)
        history.append(token)

    def learn(self, prompt: Sequence[int], sampled: Iterable[int]) -> None:
        """Record all tokens that were sampled after a prompt."""
        history = DraftHistory(prompt)
        for token in sampled:
            self.observe(history, token)

    def check(self, guess: Guess, sampled: int) -> None:
        """Record whether a draft token was sampled, given that those before it were."""
        checked, right = self._checked.get(guess.kind, (0, 0))
        self._checked[guess.kind] = (checked + 1, right + (guess.token == sampled))

    def propose(self, histories: Sequence[DraftHistory], limits: Sequence[int]) -> list[list[Guess]]:
        """Return a draft for each row, of at most its limit of tokens.

        Draft tokens are added, likeliest first, as long as they raise the expected number of tokens per cost of a pass.
        """
        if len(histories) > MAX_ROWS:
            return [[] for _ in histories]
        drafts = [self._draft(history, limit, len(histories)) for history, limit in zip(histories, limits, strict=True)]
        kept = _worthwhile((chance for draft in drafts for chance in _cumulative(draft)), len(histories))
        return [
            [guess for guess, chance in zip(draft, _cumulative(draft), strict=True) if chance >= kept]
            for draft in drafts
        ]

    def _draft(self, history: DraftHistory, limit: int, rows: int) -> list[Guess]:
        """Return guesses until one is too unlikely for any choice of the other rows' drafts."""
        length, path = len(history.tokens), history.path
        least = rows / (PASS_TOKENS + rows)
        draft: list[Guess] = []
        chance = 1.0
        while len(draft) < min(limit, MAX_DRAFT):
            guess = max(self._guesses(history), key=lambda guess: guess.chance, default=None)
            if guess is None or (chance := chance * guess.chance) <= least:
                break
            draft.append(guess)
            history.append(guess.token)
        history.cut(length, path)
        return draft

    def _guesses(self, history: DraftHistory) -> Iterable[Guess]:
        for context in history.contexts():
            if (continuations := self._continuations.get(context)) is not None:
                yield self._guess(continuations.best, continuations.share, context[0])
        if (copied := history.copied(2)) is not None:
            yield self._guess(copied, COPIED_SHARE, "copied")

    def _guess(self, token: int, share: float, source: str) -> Guess:
        kind = (source, round(10 * share))
        checked, right = self._checked.get(kind, (0, 0))
        return Guess(token, (right + PRIOR * share) / (checked + PRIOR), kind)


def _cumulative(draft: Sequence[Guess]) -> list[float]:
    """Return the chance that a draft is right up to each of its tokens."""
    return list(accumulate((guess.chance for guess in draft), mul))


def _worthwhile(chances: Iterable[float], rows: int) -> float:
    """Return the lowest chance of a draft token that raises the expected tokens per cost of a pass of these rows."""
    tokens = float(rows)
    cost = float(PASS_TOKENS + rows)
    lowest = math.inf
    for chance in sorted(chances, reverse=True):
        if chance * cost <= tokens:
            break
        tokens += chance
        cost += 1
        lowest = chance
    return lowest
