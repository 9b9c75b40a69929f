"""Tokenizers that lose text are refused; unknown words are allowed where they have a token."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.test_loading import saved, with_full_vocabulary
from seeupo.config.model_settings import TinyConfig
from seeupo.errors import ModelError
from seeupo.models.loading import load_policy, load_tokenizer
from seeupo.models.tiny import tiny_tokenizer
from seeupo.models.tokenizer_check import check_text, check_tokenizer, loss_of_text

WORDS = ("select", "city", "from", "people", "where", "name", "=", "'Fay'")
QUERY = "select city from people where name = 'Fay'"


def without_unknown_token(characters):
    """A tokenizer of characters that drops all others."""
    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(["</s>", *characters])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.mark.parametrize("load", [load_policy, load_tokenizer])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_folders_without_a_tokenizer_are_refused(tmp_path, load, family):
    with_full_vocabulary(family).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has no tokenizer; expected tokenizer\.json.* Save the model's tokenizer"):
        load(str(tmp_path))


@pytest.mark.parametrize("load", [load_policy, load_tokenizer])
def test_word_tokenizers_that_are_loaded_as_another_class_are_refused(tmp_path, load):
    folder = saved(tmp_path, with_full_vocabulary("qwen2"), tiny_tokenizer(TinyConfig(words=WORDS)))
    assert AutoTokenizer.from_pretrained(folder).decode(AutoTokenizer.from_pretrained(folder).encode(QUERY)) == "="
    with pytest.raises(
        ModelError, match=r"the tokenizer \(Qwen2Tokenizer\) loses text: .* becomes .*; expected"
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_vocabularies_of_special_tokens_only_are_refused():
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    assert loss_of_text(wrapped, QUERY) is None
    with pytest.raises(ModelError, match=r"^mine: the tokenizer has no tokens except special ones; save the model"):
        check_tokenizer(wrapped, "mine")


def test_tokenizers_of_bytes_keep_every_text():
    tokenizer = tiny_tokenizer(TinyConfig())
    for text in (QUERY, "", "Größe — 猫 🙂 ﬁ…", "a\ud800b", "<|im_end|>\x00\u200b<unk>"):
        assert loss_of_text(tokenizer, text) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [("Ab  ba", True), ("", True), ("a cat", False), ("c", False), ("1", False), ("ab!", False)],
)
def test_dropped_text_is_a_loss(text, kept):
    assert (loss_of_text(without_unknown_token("abAB"), text) is None) is kept


def test_unknown_tokens_may_stand_for_words_but_not_for_dropped_ones():
    tokenizer = tiny_tokenizer(TinyConfig(words=WORDS))
    for text in (QUERY, f"please {QUERY} now", "all words unknown", f"x {QUERY} y {QUERY}"):
        assert loss_of_text(tokenizer, text) is None
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("where", "removed"), pre_tokenizers.WhitespaceSplit()]
    )
    assert loss_of_text(tokenizer, f"please {QUERY}") is not None


def test_texts_of_a_run_are_refused_if_lost_and_warned_about_if_unknown():
    words = tiny_tokenizer(TinyConfig(words=WORDS))
    check_text(words, QUERY, "the first prompt")
    with pytest.warns(
        UserWarning, match=r"^the first prompt: .*\(unknown: 'delete', 'any'\); .*--model.tiny.words false"
    ):
        check_text(words, "delete any city", "the first prompt")
    with pytest.raises(ModelError, match=r"^the first prompt: the tokenizer .* loses text: 'abc' becomes 'a b'"):
        check_text(without_unknown_token("ab"), "abc", "the first prompt")
