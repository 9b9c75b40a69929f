"""`tiny`: a small, randomly initialized Llama and its tokenizer, for first runs and tests on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from seeupo.config.model_settings import ROLES, SPECIAL_TOKENS, UNKNOWN, TinyConfig, word_tokens
from seeupo.models.chat_templates import TINY_TEMPLATE


def tiny_tokenizer(config: TinyConfig) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a ChatML template: one token per word if words are given, otherwise byte-level BPE."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=_word_tokenizer(config.words) if config.words else _byte_tokenizer(config),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TINY_TEMPLATE
    return wrapped


def _word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with one token per word, separated by white space, which is not kept."""
    ids = {word: number for number, word in enumerate(word_tokens(words))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _byte_tokenizer(config: TinyConfig) -> Tokenizer:
    """Train a byte-level BPE tokenizer; the same corpus gives the same tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    headers = [role for role in ROLES for _ in config.corpus]  # every message begins with its role
    tokenizer.train_from_iterator([*config.corpus, *headers], trainer)
    return tokenizer


def tiny_model(config: TinyConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a Llama with tied embeddings; its weights depend on `config.seed` only, not on the global generator."""
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=config.width * 8 // 3,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.context,
        initializer_range=config.width**-0.5,  # the usual 0.02 is for much wider models and learns slowly here
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LlamaForCausalLM(shape)
