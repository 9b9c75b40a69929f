import json
import math

import pytest

from report.made_runs import HOSTILE, tokenizer, trajectory, write_tokenizer
from seeupo.report.credit import story
from seeupo.report.token_text import Tokens
from seeupo.runs.trajectory_files import to_json


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write_tokenizer(folder)
    return Tokens(folder / "tokenizer.json")


def line(*arguments, **options):
    """A trajectory as it is read from a file."""
    return json.loads(json.dumps(to_json(trajectory(*arguments, **options))))


def said(turn):
    return "".join(text for text, _ in turn["spans"])


def test_the_story_of_three_turns(tokens):
    record = line("a", "g", ["read mail", "pay the bill", "done"], 1.0, advantage=0.75)
    told = story(record, [1.0, 0.0, None, 0.0], tokens)
    assert (told["group_mean"], told["group_size"]) == (pytest.approx(1 / 3, abs=1e-5), 4)
    assert told["group_rewards"] == [1.0, 0.0, None, 0.0]
    assert told["opening"] == "say on which day tea is"
    assert [said(turn) for turn in told["turns"]] == ["read mail", "pay the bill", "done"]
    assert [turn["observation"] for turn in told["turns"]] == ["answer 0", "answer 1", "answer 2"]
    carried = 0.75
    for position, turn in enumerate((2, 1, 0), 1):  # last turn first
        shown, sample = told["turns"][turn], record["samples"][turn]
        new = next(each["new_logprobs"] for each in record["credit"]["turns"] if each["turn"] == turn)
        ratio = math.exp((sum(new) - sum(sample["logprobs"])) / len(new))
        assert shown["credit"]["position"] == position
        assert shown["credit"]["ratio"] == pytest.approx(ratio, rel=1e-4)
        assert shown["credit"]["before"] == pytest.approx(carried, rel=1e-4)
        carried *= ratio
        assert shown["credit"]["after"] == pytest.approx(carried, rel=1e-4)
        assert shown["credit"]["clipped"] is (abs(ratio - 1) > 0.2)
        assert shown["logprob_before"] == pytest.approx(sum(sample["logprobs"]), rel=1e-4)
        assert shown["logprob_after"] == pytest.approx(sum(new), rel=1e-4)
        assert shown["action_tokens"] == len(sample["action"]) == len(shown["spans"])
        changes = [after - before for after, before in zip(new, sample["logprobs"], strict=True)]
        assert [change for _, change in shown["spans"]] == pytest.approx(changes, abs=1e-5)
    lengths = [len(sample["prompt"]) + sample["shared"] for sample in record["samples"]]
    assert [turn["prompt_tokens"] for turn in told["turns"]] == lengths
    assert lengths == sorted(lengths)


def test_tokens_that_share_a_character_share_a_change(tokens):
    record = line("a", "g", ["日本"], 1.0, advantage=0.5)
    (turn,) = story(record, [1.0], tokens)["turns"]
    assert [text for text, _ in turn["spans"]] == ["日", "本"]
    assert turn["action_tokens"] > 2
    total = turn["logprob_after"] - turn["logprob_before"]
    assert sum(change for _, change in turn["spans"]) == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_told_as_they_are(tokens, text):
    record = line("a", "g", [text], 0.0, opening=text)
    told = story(record, [0.0], tokens)
    assert told["opening"] == text
    assert said(told["turns"][0]) == text.encode(errors="replace").decode()


def test_without_credit_there_is_none(tokens):
    (turn,) = story(line("a", "g", ["done"], 0.5), [0.5], tokens)["turns"]
    assert (turn["credit"], turn["logprob_after"]) == (None, None)
    assert all(change is None for _, change in turn["spans"])
    assert turn["logprob_before"] < 0


def test_a_group_without_a_difference_has_an_advantage_and_no_updates(tokens):
    (turn,) = story(line("a", "g", ["done"], 1.0, advantage=0.0), [1.0, 1.0], tokens)["turns"]
    assert turn["credit"] is None


def test_algorithms_that_carry_nothing_have_the_weight_of_an_action(tokens):
    record = line("a", "g", ["done"], 1.0, advantage=0.5)
    record["credit"]["turns"][0] |= {"carried_before": 0.25, "carried_after": None}
    (turn,) = story(record, [1.0], tokens)["turns"]
    assert (turn["credit"]["before"], turn["credit"]["after"], turn["credit"]["weight"]) == (None, None, 0.25)
    assert turn["credit"]["ratio"] > 0
    assert "weight" not in story(line("a", "g", ["x"], 1.0, advantage=1.0), [1.0], tokens)["turns"][0]["credit"]


def test_thoughts_are_told_from_actions(tokens):
    (turn,) = story(line("a", "g", ["<think>who?</think>done"], 1.0), [1.0], tokens)["turns"]
    ((begin, end),) = turn["thought"]
    texts = [text for text, _ in turn["spans"]]
    assert ("".join(texts[begin:end]), "".join(texts[end:])) == ("<think>who?</think>", "done")


def test_without_a_tokenizer_responses_are_whole():
    told = story(line("a", "g", ["<think>who?</think>done", ""], 1.0, advantage=0.5), [1.0], None)
    first, second = told["turns"]
    assert first["spans"] == [["<think>who?</think>", None], ["done", None]]
    assert first["thought"] == [[0, 1]]
    assert second["spans"] == []
    assert first["credit"]["position"] == 2
    assert first["logprob_after"] is not None


def test_what_failed_says_so(tokens):
    early = line("a", "g", [], math.nan, texts=("[failed: lost]",))
    assert story(early, [None], tokens) == {
        "group_mean": None, "group_size": 1, "group_rewards": [None], "opening": "[failed: lost]", "turns": [],
    }  # fmt: skip
    late = line("a", "g", ["read", "done"], math.nan, texts=("go", "read", "mail", "done", "ok", "[failed: no score]"))
    assert story(late, [None], tokens)["turns"][-1]["observation"] == "ok\n[failed: no score]"
    half = line("a", "g", ["read", "done"], math.nan, texts=("go", "read", "mail", "done", "[failed: lost]"))
    assert [turn["observation"] for turn in story(half, [None], tokens)["turns"]] == ["mail", "[failed: lost]"]


def test_without_texts_prompts_are_shown(tokens):
    told = story(line("a", "g", ["read", "done"], 1.0, texts=()), [1.0], tokens)
    assert told["opening"] == "say on which day tea is"
    assert [turn["observation"] for turn in told["turns"]] == ["answer 0", ""]
    assert said(told["turns"][0]) == "read"


def test_log_probs_that_are_no_numbers_have_no_change(tokens):
    record = line("a", "g", ["read mail"], 1.0, advantage=0.5)
    record["credit"]["turns"][0]["new_logprobs"][0] = None
    (turn,) = story(record, [1.0], tokens)["turns"]
    changes = [change for _, change in turn["spans"]]
    assert changes[0] is None
    assert all(change is not None for change in changes[1:])
    assert turn["logprob_after"] is None
    del record["credit"]["turns"][0]["new_logprobs"][0]
    (turn,) = story(record, [1.0], tokens)["turns"]
    assert all(change is None for _, change in turn["spans"])
    assert len(turn["spans"]) == len(tokenizer().encode("read mail").ids)
