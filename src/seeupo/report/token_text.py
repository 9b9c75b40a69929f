"""Text of sampled tokens, one text per token; tokens that share a character share a text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from seeupo.rollout.reasoning import thought_ranges

REPLACEMENT = "\ufffd"
"""The character that decoders write for an incomplete character."""
MAX_TOKENS_PER_CHARACTER = 8


class TokenDecoder:
    """Decodes the tokens of a run. The text of each token is computed once."""

    def __init__(self, path: Path) -> None:
        with _errors_of_the_library():
            self._tokenizer = Tokenizer.from_file(str(path))
        self._special = {n for n, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._anchor = self._find_anchor()
        self._first_text = cache(lambda token: self._decode((token,), first=True))
        self._later_text = cache(lambda token: self._decode((token,), first=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of all tokens, special tokens included."""
        with _errors_of_the_library():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def is_special(self, token: int) -> bool:
        """Return whether a token is a mark, such as the end of a turn, and not part of the response."""
        return token in self._special

    def token_texts(self, ids: Sequence[int]) -> tuple[list[str], list[int]]:
        """Return the text of each token, or of several that share a character, and the number of tokens of each."""
        texts = [self._later_text(token) for token in ids]
        if texts:
            texts[0] = self._first_text(ids[0])
        return self._merged(ids, texts) if REPLACEMENT in "".join(texts) else (texts, [1] * len(texts))

    def _merged(self, ids: Sequence[int], texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Merge tokens that are incomplete characters on their own."""
        merged, counts = [], []
        start = 0
        while start < len(ids):
            end, text = start + 1, texts[start]
            # A token that completes a character starts inside it, so its own text starts with a replacement.
            while text.endswith(REPLACEMENT) and texts[end : end + 1] and texts[end].startswith(REPLACEMENT):
                end += 1
                text = self._decode(tuple(ids[start:end]), first=start == 0)
                if end - start >= MAX_TOKENS_PER_CHARACTER:
                    break
            merged.append(text)
            counts.append(end - start)
            start = end
        return merged, counts

    def _decode(self, ids: tuple[int, ...], *, first: bool) -> str:
        """Return the text of tokens at the start or after others: some tokenizers put a space in between."""
        if first or self._anchor is None:
            return self.decode(ids)
        token, text = self._anchor
        decoded = self.decode((token, *ids))
        return decoded[len(text) :] if decoded.startswith(text) else self.decode(ids)

    def _find_anchor(self) -> tuple[int, str] | None:
        """Return a token of plain letters that other tokens can follow, and its text."""
        for token in range(self._tokenizer.get_vocab_size()):
            text = self.decode((token,))
            if token not in self._special and text.isascii() and text.isalnum():
                return token, text
        return None


@contextmanager
def _errors_of_the_library() -> Iterator[None]:
    """Raise `ValueError` for the plain exceptions of the tokenizers library, and for its panics."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":  # which has no public name
            raise ValueError(f"tokenizer.json cannot be used: {error}") from None
        raise


def thought_token_ranges(texts: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """Return which texts of a response are thoughts, as [start, end]; a partial overlap counts.

    Special tokens are skipped, because they were not part of the text in which the agent found thoughts.
    """
    plain = ["" if mark else text for text, mark in zip(texts, special, strict=True)]
    thoughts = deque(thought_ranges("".join(plain)))
    ranges: list[list[int]] = []
    start = 0
    for number, text in enumerate(plain):
        end = start + len(text)
        while thoughts and thoughts[0][1] <= start:
            thoughts.popleft()
        if thoughts and thoughts[0][0] < end and start < end:
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])
        start = end
    return ranges
