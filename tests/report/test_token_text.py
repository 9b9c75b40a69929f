import pytest

from report.made_runs import HOSTILE, tokenizer, write_tokenizer
from seeupo.models.tiny import TinyConfig, tiny_tokenizer
from seeupo.report.token_text import Tokens, has_thought, thought_places, whole_pieces


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write_tokenizer(folder)
    return Tokens(folder / "tokenizer.json")


@pytest.mark.parametrize("text", ["read the mail", "", *(text.encode(errors="replace").decode() for text in HOSTILE)])
def test_pieces_are_the_text_and_hold_every_token_once(tokens, text):
    ids = tokenizer().encode(text).ids
    texts, counts = tokens.pieces(ids)
    assert "".join(texts) == text
    assert sum(counts) == len(ids)
    assert len(texts) == len(counts)


def test_one_piece_per_token_but_for_characters_of_several(tokens):
    ids = tokenizer().encode("a日b").ids
    assert tokens.pieces(ids) == (["a", "日", "b"], [1, len(ids) - 2, 1])
    assert len(ids) > 3
    assert tokens.pieces(tokenizer().encode("日a").ids)[0] == ["日", "a"]


def test_bytes_that_never_become_a_character_stay_apart_from_what_follows(tokens):
    first = tokenizer().encode("日").ids[0]
    plain = tokenizer().encode("a").ids
    texts, counts = tokens.pieces([*plain, first, *plain, *[first] * 20])
    assert texts[:3] == ["a", "\ufffd", "a"]
    assert sum(counts) == 23


def test_tokenizers_of_words_have_spaces_between_their_pieces(tmp_path):
    words = tiny_tokenizer(TinyConfig(words=("notes", "tea"))).backend_tokenizer
    words.save(str(tmp_path / "tokenizer.json"))
    tokens = Tokens(tmp_path / "tokenizer.json")
    ids = [*words.encode("notes tea").ids, words.token_to_id("<|im_end|>")]
    assert tokens.pieces(ids) == (["notes", " tea", " <|im_end|>"], [1, 1, 1])
    assert "".join(tokens.pieces(ids)[0]) == words.decode(ids, skip_special_tokens=False)
    assert [tokens.special(each) for each in ids] == [False, False, True]


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        Tokens(tmp_path / "tokenizer.json")


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
def test_which_pieces_are_thought(texts, expected):
    assert thought_places(texts, [False] * len(texts)) == expected
    assert has_thought(texts) == bool(expected)


def test_a_special_token_opens_no_thought():
    assert thought_places(["<think>", "a"], [True, False]) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("done", (["done"], [])),
        ("", ([], [])),
        ("<think>a</think>b", (["<think>a</think>", "b"], [[0, 1]])),
        ("a<think>b", (["a", "<think>b"], [[1, 2]])),
    ],
)
def test_a_response_without_its_tokens(text, expected):
    assert whole_pieces(text) == expected
