"""The text of sampled tokens, one piece per token; several tokens share a piece where they share a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from seeupo.agents.reasoning import CLOSE, OPEN, thought_ranges

PARTIAL = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""
LONGEST = 8
"""How many tokens may share a character; an emoji has four bytes."""


class Tokens:
    """The tokens of a run, as text. Every token is decoded once."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"{path.name} is no tokenizer that can be read: {error}") from None
        self._special = {n for n, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._anchor = self._find_anchor()
        self._first = _Remembered(lambda token: self._decode((token,), first=True))
        self._behind = _Remembered(lambda token: self._decode((token,), first=False))

    def decode(self, ids: Sequence[int]) -> str:
        """All of it at once, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def special(self, token: int) -> bool:
        """Whether a token is a mark, such as the end of a turn, which is no part of what was said."""
        return token in self._special

    def pieces(self, ids: Sequence[int]) -> tuple[list[str], list[int]]:
        """The text of each token, or of several that share a character, and how many tokens each text is of."""
        texts = [self._behind[token] for token in ids]
        if texts:
            texts[0] = self._first[ids[0]]
        return self._joined(ids, texts) if PARTIAL in "".join(texts) else (texts, [1] * len(texts))

    def _joined(self, ids: Sequence[int], alone: Sequence[str]) -> tuple[list[str], list[int]]:
        """The same, with tokens put together that are no whole characters alone."""
        texts, counts = [], []
        place = 0
        while place < len(ids):
            end, text = place + 1, alone[place]
            # A token that completes a character begins in the middle of one, which shows when it is alone.
            while text.endswith(PARTIAL) and alone[end : end + 1] and alone[end].startswith(PARTIAL):
                end += 1
                text = self._decode(tuple(ids[place:end]), first=place == 0)
                if end - place >= LONGEST:
                    break
            texts.append(text)
            counts.append(end - place)
            place = end
        return texts, counts

    def _decode(self, ids: tuple[int, ...], *, first: bool) -> str:
        """The text of tokens at the beginning, or behind others: some tokenizers put a space in between."""
        if first or self._anchor is None:
            return self.decode(ids)
        number, text = self._anchor
        behind = self.decode((number, *ids))
        return behind[len(text) :] if behind.startswith(text) else self.decode(ids)

    def _find_anchor(self) -> tuple[int, str] | None:
        """A token of plain letters for others to stand behind."""
        for number in range(self._tokenizer.get_vocab_size()):
            text = self.decode((number,))
            if number not in self._special and text.isascii() and text.isalnum():
                return number, text
        return None


class _Remembered(dict[int, str]):
    """Texts by token, found out when they are first asked for."""

    def __init__(self, find: Callable[[int], str]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, token: int) -> str:
        self[token] = text = self._find(token)
        return text


def has_thought(texts: Sequence[str]) -> bool:
    """Whether a response can have thoughts in it: most have none, and need not be looked through."""
    whole = "".join(texts)
    return OPEN in whole or CLOSE in whole


def thought_places(texts: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """Which pieces of a response are thought, as [from, to]; one that is partly thought counts as thought.

    Special tokens were no part of the text in which the agent looked for thoughts.
    """
    said = ["" if mark else text for text, mark in zip(texts, special, strict=True)]
    ranges = thought_ranges("".join(said))
    found: list[list[int]] = []
    start = 0
    for place, text in enumerate(said):
        end = start + len(text)
        while ranges and ranges[0][1] <= start:
            ranges.pop(0)
        if ranges and ranges[0][0] < end and start < end:
            if found and found[-1][1] == place:
                found[-1][1] = place + 1
            else:
                found.append([place, place + 1])
        start = end
    return found


def whole_pieces(text: str) -> tuple[list[str], list[list[int]]]:
    """A response without its tokens: pieces of thought and of action, and which of them are thought."""
    pieces: list[str] = []
    thoughts: list[list[int]] = []
    place = 0
    for low, high in thought_ranges(text):
        if low > place:
            pieces.append(text[place:low])
        thoughts.append([len(pieces), len(pieces) + 1])
        pieces.append(text[low:high])
        place = high
    if text[place:]:
        pieces.append(text[place:])
    return pieces, thoughts
