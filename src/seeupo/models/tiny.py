"""`tiny`: a small, randomly initialised Llama with a tokenizer of its own, for first runs and tests on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from seeupo.core.checks import OptionError, check_count

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
UNKNOWN = "<unk>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """Size of a `tiny` model. The defaults give 0.6 million weights.

    Attributes:
        words: a closed vocabulary: each word is one token, wherever it stands, and anything else is unknown.
        corpus: texts that the tokenizer learns its words from; without any it spells everything in bytes.
        vocabulary: at most this many tokens, 256 bytes and the special tokens included.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    context: int = 1024
    vocabulary: int = 1024
    words: Sequence[str] = ()
    corpus: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "context"):
            check_count(name, getattr(self, name), 1)
        check_count("vocabulary", self.vocabulary, 256 + len(SPECIAL_TOKENS))
        if self.width % (2 * self.heads):
            raise OptionError("width", self.width, f"a multiple of twice the number of heads, {self.heads}")


def tiny_tokenizer(config: TinyConfig) -> PreTrainedTokenizerFast:
    """A tokenizer with ChatML turns: of whole words if there are any, otherwise byte-level BPE."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=_of_words(config.words) if config.words else _of_bytes(config),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _of_words(words: Sequence[str]) -> Tokenizer:
    """One token per word, set apart by white space, which is not kept."""
    known = dict.fromkeys((*SPECIAL_TOKENS, UNKNOWN, *ROLES, *words))
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(known)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _of_bytes(config: TinyConfig) -> Tokenizer:
    """The same corpus gives the same tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(config.corpus, trainer)
    return tokenizer


def tiny_model(config: TinyConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with tied embeddings, initialised from the seed whatever else has been drawn before."""
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=config.width * 8 // 3,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.context,
        initializer_range=config.width
        ** -0.5,  # the usual 0.02 is for models a hundred times as wide, and learns slowly here
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LlamaForCausalLM(shape)
