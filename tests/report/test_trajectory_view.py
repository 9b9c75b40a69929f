import json
import math
from dataclasses import replace

import pytest

from report.made_runs import HOSTILE, failed_trajectory, tokenizer, trajectory, write_tokenizer
from seeupo.report.token_text import TokenDecoder
from seeupo.report.trajectory_view import trajectory_view
from seeupo.runs.trajectory_files import to_json


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy")
    write_tokenizer(policy)
    return TokenDecoder(policy / "tokenizer.json")


def as_record(each):
    """Return a trajectory as it is read from a file."""
    return json.loads(json.dumps(to_json(each)))


def record_of(*arguments, **options):
    return as_record(trajectory(*arguments, **options))


def response(turn):
    return "".join(text for text, _ in turn["tokens"])


def test_credit_follows_the_update_order(decoder):
    record = record_of("a", "g", ["read mail", "pay the bill", "done"], 1.0, advantage=0.75)
    view = trajectory_view(record, [1.0, 0.0, None, 0.0], decoder)
    assert (view["group_mean"], view["group_size"]) == (pytest.approx(1 / 3, abs=1e-5), 4)
    assert view["group_rewards"] == [1.0, 0.0, None, 0.0]
    assert view["opening"] == "say on which day tea is"
    assert [response(turn) for turn in view["turns"]] == ["read mail", "pay the bill", "done"]
    assert [turn["observation"] for turn in view["turns"]] == ["answer 0", "answer 1", "answer 2"]
    carried = 0.75
    for position, turn in enumerate((2, 1, 0), 1):  # last turn first
        shown, turn_record = view["turns"][turn], record["turns"][turn]
        new = next(each["new_logprobs"] for each in record["credit"]["turns"] if each["turn"] == turn)
        ratio = math.exp((sum(new) - sum(turn_record["logprobs"])) / len(new))
        assert shown["credit"]["position"] == position
        assert shown["credit"]["ratio"] == pytest.approx(ratio, rel=1e-4)
        assert shown["credit"]["before"] == pytest.approx(carried, rel=1e-4)
        carried *= ratio
        assert shown["credit"]["after"] == pytest.approx(carried, rel=1e-4)
        assert shown["credit"]["clipped"] is (abs(ratio - 1) > 0.2)
        assert shown["logprob_before"] == pytest.approx(sum(turn_record["logprobs"]), rel=1e-4)
        assert shown["logprob_after"] == pytest.approx(sum(new), rel=1e-4)
        assert shown["action_tokens"] == len(turn_record["action"]) == len(shown["tokens"])
        changes = [after - before for after, before in zip(new, turn_record["logprobs"], strict=True)]
        assert [change for _, change in shown["tokens"]] == pytest.approx(changes, abs=1e-5)
    lengths = [len(each["prompt"]) + each["shared"] for each in record["turns"]]
    assert [turn["prompt_tokens"] for turn in view["turns"]] == lengths
    assert lengths == sorted(lengths)


def test_step_rewards_are_shown(decoder):
    made = trajectory("a", "g", ["read mail", "done"], 1.0, advantage=0.75)
    made = replace(made, turns=(replace(made.turns[0], reward=0.125), made.turns[1]))
    view = trajectory_view(as_record(made), [1.0, 0.0], decoder)
    assert [turn["reward"] for turn in view["turns"]] == [0.125, 0.0]


def test_tokens_that_share_a_character_share_a_change(decoder):
    record = record_of("a", "g", ["日本"], 1.0, advantage=0.5)
    (turn,) = trajectory_view(record, [1.0], decoder)["turns"]
    assert [text for text, _ in turn["tokens"]] == ["日", "本"]
    assert turn["action_tokens"] > 2
    total = turn["logprob_after"] - turn["logprob_before"]
    assert sum(change for _, change in turn["tokens"]) == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_unchanged(decoder, text):
    record = record_of("a", "g", [text], 0.0, opening=text)
    view = trajectory_view(record, [0.0], decoder)
    assert view["opening"] == text
    assert response(view["turns"][0]) == text.encode(errors="replace").decode()


def test_trajectory_without_credit_has_no_changes(decoder):
    (turn,) = trajectory_view(record_of("a", "g", ["done"], 0.5), [0.5], decoder)["turns"]
    assert (turn["credit"], turn["logprob_after"]) == (None, None)
    assert all(change is None for _, change in turn["tokens"])
    assert turn["logprob_before"] < 0


def test_zero_advantage_has_no_turn_credit(decoder):
    (turn,) = trajectory_view(record_of("a", "g", ["done"], 1.0, advantage=0.0), [1.0, 1.0], decoder)["turns"]
    assert turn["credit"] is None


def test_algorithms_without_carry_have_a_weight(decoder):
    record = record_of("a", "g", ["done"], 1.0, advantage=0.5)
    record["credit"]["turns"][0] |= {"carried_before": 0.25, "carried_after": None}
    (turn,) = trajectory_view(record, [1.0], decoder)["turns"]
    assert (turn["credit"]["before"], turn["credit"]["after"], turn["credit"]["weight"]) == (None, None, 0.25)
    assert turn["credit"]["ratio"] > 0
    assert (
        "weight"
        not in trajectory_view(record_of("a", "g", ["x"], 1.0, advantage=1.0), [1.0], decoder)["turns"][0]["credit"]
    )


def test_thoughts_are_separated_from_actions(decoder):
    (turn,) = trajectory_view(record_of("a", "g", ["<think>who?</think>done"], 1.0), [1.0], decoder)["turns"]
    ((start, end),) = turn["thoughts"]
    texts = [text for text, _ in turn["tokens"]]
    assert ("".join(texts[start:end]), "".join(texts[end:])) == ("<think>who?</think>", "done")


def test_responses_are_not_split_without_a_tokenizer():
    view = trajectory_view(record_of("a", "g", ["<think>who?</think>done", ""], 1.0, advantage=0.5), [1.0], None)
    first, second = view["turns"]
    assert first["tokens"] == [["<think>who?</think>done", None]]
    assert first["thoughts"] == []
    assert second["tokens"] == []
    assert first["credit"]["position"] == 2
    assert first["logprob_after"] is not None


def test_failure_is_shown_apart_from_the_text(decoder):
    early = as_record(failed_trajectory("a", "g", [], "reset failed", opening=""))
    assert trajectory_view(early, [None], decoder) == {
        "group_mean": None, "group_size": 1, "group_rewards": [None], "opening": "", "failure": "reset failed",
        "turns": [],
    }  # fmt: skip
    late = failed_trajectory("a", "g", ["read", "done"], "worker lost")
    late = replace(late, turn_texts=(late.turn_texts[0], replace(late.turn_texts[1], observation="")))
    view = trajectory_view(as_record(late), [None], decoder)
    assert view["failure"] == "worker lost"
    assert [turn["observation"] for turn in view["turns"]] == ["answer 0", ""]


def test_prompts_are_decoded_if_there_is_no_text(decoder):
    record = as_record(replace(trajectory("a", "g", ["read", "done"], 1.0), opening="", turn_texts=()))
    view = trajectory_view(record, [1.0], decoder)
    assert view["opening"] == "say on which day tea is"
    assert [turn["observation"] for turn in view["turns"]] == ["answer 0", ""]
    assert response(view["turns"][0]) == "read"
    assert trajectory_view(record, [1.0], None)["turns"][0]["tokens"] == []


def test_invalid_log_probs_have_no_change(decoder):
    record = record_of("a", "g", ["read mail"], 1.0, advantage=0.5)
    record["credit"]["turns"][0]["new_logprobs"][0] = None
    (turn,) = trajectory_view(record, [1.0], decoder)["turns"]
    assert all(change is None for _, change in turn["tokens"])
    assert turn["logprob_after"] is None
    del record["credit"]["turns"][0]["new_logprobs"][0]
    (turn,) = trajectory_view(record, [1.0], decoder)["turns"]
    assert all(change is None for _, change in turn["tokens"])
    assert len(turn["tokens"]) == len(tokenizer().encode("read mail").ids)
