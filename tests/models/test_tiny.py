from transformers import AutoTokenizer

from seeupo.config.model_settings import TinyConfig
from seeupo.envs.pocket import PocketFactory
from seeupo.models.loading import load_policy
from seeupo.rollout.chat import chat_format
from seeupo.types import Message

WORDS = PocketFactory().vocabulary()


def test_every_word_is_one_token():
    tokenizer = load_policy("tiny", tiny=TinyConfig(words=WORDS)).tokenizer
    for word in WORDS:
        alone = tokenizer.encode(word, add_special_tokens=False)
        assert len(alone) == 1
        assert tokenizer.encode(f"pay {word} now", add_special_tokens=False)[1:2] == alone
        assert tokenizer.encode(f"now\n{word}", add_special_tokens=False)[1:2] == alone
    # Three special tokens and the unknown word.
    assert len(tokenizer) == len({*WORDS, "system", "user", "assistant", "tool"}) + 4


def test_text_round_trips_and_other_words_are_unknown():
    tokenizer = load_policy("tiny", tiny=TinyConfig(words=WORDS)).tokenizer
    assert tokenizer.decode(tokenizer.encode("pay bob 5", add_special_tokens=False)) == "pay bob 5"
    odd = tokenizer.encode("pay zebra 5", add_special_tokens=False)
    assert chat_format(tokenizer).decode(odd) == "pay <unk> 5"  # an unknown word is not dropped


def test_chat_format_survives_saving(tmp_path):
    tokenizer = load_policy("tiny", tiny=TinyConfig(words=WORDS)).tokenizer
    opening = chat_format(tokenizer).opening([Message("user", "pay bob 5")], ())
    shown = "<|im_start|> user pay bob 5 <|im_end|> <|im_start|> assistant"
    assert tokenizer.decode(opening) == shown
    assert chat_format(tokenizer).decode([*opening[2:5], tokenizer.eos_token_id]) == "pay bob 5"
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert chat_format(again).opening([Message("user", "pay bob 5")], ()) == opening


def test_roles_are_one_token_also_if_tokens_are_learned_from_texts():
    corpus = ["take the key from the box", "open the box", "the box is open"] * 4
    tokenizer = load_policy("tiny", tiny=TinyConfig(corpus=corpus, vocabulary=300)).tokenizer
    for role in ("system", "user", "assistant", "tool"):
        assert len(tokenizer.encode(role, add_special_tokens=False)) == 1
