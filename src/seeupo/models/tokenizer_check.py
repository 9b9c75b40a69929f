"""Check that a tokenizer keeps text: transformers may load tokenizer files as another class, or make an empty one."""

from __future__ import annotations

import fnmatch
import glob
import re
import unicodedata
import warnings
from pathlib import Path
from reprlib import Repr

from transformers import PreTrainedTokenizerBase

from seeupo.config.model_settings import UNKNOWN
from seeupo.errors import ModelError

TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
PROBE = "Call find_city(id=42) or select 7 names from people where name = 'Fay'; then say: \"done\"!"
REMEDY = "save the model with the tokenizer that it was made with"
WORDS_REMEDY = "use a model that reads any text (for tiny: --model.tiny.words false)"
_short = Repr()
_short.maxstring = 100


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder contains the vocabulary of a tokenizer."""
    return any(next(folder.glob(pattern), None) is not None for pattern in TOKENIZER_FILES)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise `ModelError` if a tokenizer has no words, or loses part of an English text with digits and punctuation."""
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise ModelError(f"{name}: the tokenizer has no tokens except special ones; {REMEDY}")
    if (problem := loss_of_text(tokenizer, PROBE)) is not None:
        raise ModelError(f"{name}: {problem}")


def check_text(tokenizer: PreTrainedTokenizerBase, text: str, place: str) -> None:
    """Raise `ModelError` if a tokenizer loses part of a text of a run, and warn if it does not know all of its words.

    Args:
        place: What the text is, for the message.
    """
    if (problem := loss_of_text(tokenizer, text)) is not None:
        raise ModelError(f"{place}: {problem}")
    unknown = unknown_ids(tokenizer)
    if words := [word for word in dict.fromkeys(text.split()) if unknown & set(_encode(tokenizer, word))]:
        shown = f"unknown: {', '.join(map(_short.repr, words[:5]))}{', ...' if words[5:] else ''}"
        remedy = f"add them to the environment's vocabulary(), or {WORDS_REMEDY}"
        warnings.warn(f"{place}: the tokenizer does not know all of its words ({shown}); {remedy}", stacklevel=2)


def unknown_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of tokens that stand for unknown words.

    Tokenizers of bytes often name their end-of-sequence token as the unknown one; it stands for no word.
    """
    declared = {tokenizer.unk_token_id, tokenizer.get_vocab().get(UNKNOWN)}
    return {token for token in declared if token is not None and token != tokenizer.eos_token_id}


def loss_of_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """Return a description of the loss if a text does not survive encoding and decoding, and None if it does.

    White space, case, control characters and compatible forms of characters may change, and unknown tokens may stand
    for any text.
    """
    parts: list[list[int]] = [[]]
    unknown = unknown_ids(tokenizer)
    for token in _encode(tokenizer, text):
        if token in unknown:
            parts.append([])
        else:
            parts[-1].append(token)
    decoded = [str(tokenizer.decode(part)) for part in parts]
    if _is_joined([_normalized(part) for part in decoded], _normalized(text)):
        return None
    result = _short.repr(UNKNOWN.join(decoded))
    return (
        f"the tokenizer ({type(tokenizer).__name__}) loses text: {_short.repr(text)} becomes {result}; expected the "
        f"same text. Its files are incomplete, or belong to another model or class; {REMEDY}"
    )


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    valid = text.encode(errors="replace").decode()
    return list(tokenizer.encode(valid, add_special_tokens=False))


def _normalized(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text.encode(errors="replace").decode()).casefold()
    return "".join(char for char in folded if not char.isspace() and not unicodedata.category(char).startswith("C"))


def _is_joined(parts: list[str], text: str) -> bool:
    """Return whether a text consists of the parts, with any text between two of them."""
    if len(parts) == 1:
        return parts[0] == text
    return re.match(fnmatch.translate("*".join(map(glob.escape, parts))), text) is not None
