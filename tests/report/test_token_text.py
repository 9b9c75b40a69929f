import json

import pytest
from tokenizers import Tokenizer, models

from report.made_runs import HOSTILE, tokenizer, write_tokenizer
from seeupo.models.tiny import TinyConfig, tiny_tokenizer
from seeupo.report.token_text import TokenDecoder, thought_token_ranges


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy")
    write_tokenizer(policy)
    return TokenDecoder(policy / "tokenizer.json")


@pytest.mark.parametrize("text", ["read the mail", "", *(text.encode(errors="replace").decode() for text in HOSTILE)])
def test_texts_join_to_the_response_and_cover_every_token(decoder, text):
    ids = tokenizer().encode(text).ids
    texts, counts = decoder.token_texts(ids)
    assert "".join(texts) == text
    assert sum(counts) == len(ids)
    assert len(texts) == len(counts)


def test_tokens_of_one_character_are_merged(decoder):
    ids = tokenizer().encode("a日b").ids
    assert decoder.token_texts(ids) == (["a", "日", "b"], [1, len(ids) - 2, 1])
    assert len(ids) > 3
    assert decoder.token_texts(tokenizer().encode("日a").ids)[0] == ["日", "a"]


def test_incomplete_characters_are_not_merged_with_the_next_token(decoder):
    first = tokenizer().encode("日").ids[0]
    plain = tokenizer().encode("a").ids
    texts, counts = decoder.token_texts([*plain, first, *plain, *[first] * 20])
    assert texts[:3] == ["a", "\ufffd", "a"]
    assert sum(counts) == 23


def test_word_tokenizers_keep_spaces_between_tokens(tmp_path):
    words = tiny_tokenizer(TinyConfig(words=("notes", "tea"))).backend_tokenizer
    words.save(str(tmp_path / "tokenizer.json"))
    decoder = TokenDecoder(tmp_path / "tokenizer.json")
    ids = [*words.encode("notes tea").ids, words.token_to_id("<|im_end|>")]
    assert decoder.token_texts(ids) == (["notes", " tea", " <|im_end|>"], [1, 1, 1])
    assert "".join(decoder.token_texts(ids)[0]) == words.decode(ids, skip_special_tokens=False)
    assert [decoder.is_special(each) for each in ids] == [False, False, True]


def test_panic_of_the_tokenizers_library_is_an_error(tmp_path):
    stripped = {"type": "Strip", "content": "a", "start": 0, "stop": 5}  # more than there is
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    content = {**json.loads(tokenizer.to_str()), "decoder": stripped}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be used"):
        TokenDecoder(tmp_path / "tokenizer.json").decode([0])


def test_invalid_tokenizer_file_is_an_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        TokenDecoder(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<think>", "who", "</think>", "done"], [[0, 3]]),
        (["<thi", "nk>a</th", "ink>done", "."], [[0, 3]]),
        (["a", "<think>", "b"], [[1, 3]]),
        (["b", "</think>", "", "c"], [[0, 2]]),
        (["<think>a</think>", "b", "<think>c</think>"], [[0, 1], [2, 3]]),
        (["done"], []),
        ([], []),
    ],
)
def test_thought_token_ranges(texts, expected):
    assert thought_token_ranges(texts, [False] * len(texts)) == expected


def test_special_tokens_do_not_open_thoughts():
    assert thought_token_ranges(["<think>", "a"], [True, False]) == []
