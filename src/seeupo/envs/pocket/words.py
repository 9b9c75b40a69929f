"""The words of tasks. Every word has exactly one sort."""

from __future__ import annotations

WORDS: dict[str, tuple[str, ...]] = {
    "name": ("ann", "bob", "cara", "dan", "eve", "fay", "gus", "hal", "ian", "joy", "kim", "leo"),
    "role": ("boss", "chef", "coach", "guide", "nurse", "tutor"),
    "topic": ("concert", "game", "gift", "lunch", "rent", "taxi", "tea", "trip"),
    "day": ("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    "amount": ("2", "3", "4", "5", "6", "7", "8", "9"),
    "colour": ("blue", "gold", "green", "pink", "red", "white"),
}
CHANNELS = ("mail", "text")
"""Ways to write to a contact; each is also the name of a tool."""

SORT_OF = {word: sort for sort, words in WORDS.items() for word in words}


def words_of(sort: str) -> tuple[str, ...]:
    """Return the words of a sort; "word" means all of them."""
    if sort == "word":
        return tuple(SORT_OF)
    return CHANNELS if sort == "channel" else WORDS[sort]
