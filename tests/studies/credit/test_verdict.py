"""Verdicts follow from the gains."""

import json
from dataclasses import replace

import pytest

from studies.credit import Scores, Setting, Verdict, questions
from studies.credit.methods import WITH_M, WITHOUT_M
from studies.credit.study import Score


def score(*gains: float) -> Score:
    return Score(0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.1, gains)


def verdict(*results: Scores) -> Verdict:
    (question,) = questions(results)
    assert question.title == "Does M help?"
    return question.verdict


BETTER, WORSE = score(0.20, 0.21, 0.22), score(0.10, 0.111, 0.12)
HELPED = Scores(Setting("chain"), {WITH_M: BETTER, WITHOUT_M: WORSE})
HURT = Scores(Setting("decisive"), {WITH_M: WORSE, WITHOUT_M: BETTER})
SAME = Scores(Setting("deceptive"), {WITH_M: score(0.1, 0.3, 0.2), WITHOUT_M: score(0.2, 0.1, 0.25)})


def test_the_verdict_flips_with_the_data():
    assert verdict(HELPED) is Verdict.HELPS
    assert verdict(HURT) is Verdict.HURTS
    assert verdict(HELPED, HURT) is Verdict.DEPENDS
    assert verdict(SAME) is Verdict.SAME
    assert verdict(SAME, HELPED) is Verdict.HELPS


def test_sentences_count_and_name_the_settings():
    (question,) = questions([HELPED, HURT, SAME])
    assert "larger gain in 1 (at most +90%: chain, T 6, G 16, KL 0.1)" in question.sentence
    assert "smaller in 1 (at most -47%: decisive, T 6, G 16, turn 3 decides, KL 0.1) of 3 settings" in question.sentence
    assert question.by_kind["deceptive"].startswith("no significant difference: larger gain in 0 and smaller in 0")
    assert json.loads(json.dumps(question.to_json()))["verdict"] == "depends on the problem"


def test_differences_are_paired_by_group():
    # Gains vary much more between groups than between the methods.
    gains = [0.1, 0.3, 0.5, 0.7]
    paired = Scores(
        Setting("chain"), {WITH_M: score(*(gain + 0.01 for gain in gains)), WITHOUT_M: score(*reversed(gains))}
    )
    assert verdict(paired) is Verdict.SAME
    assert verdict(replace(paired, methods=paired.methods | {WITHOUT_M: score(*gains)})) is Verdict.HELPS


def test_missing_methods_are_not_compared():
    assert questions([Scores(Setting("chain"), {WITH_M: BETTER})]) == []


def test_labels_name_what_differs_from_the_default():
    setting = Setting("decisive", turns=3, noise=0.1, step_reward=0.5)
    assert setting.label == "decisive, T 3, G 16, turn 3 decides, noise 0.1, KL 0.1, step rewards 0.5"
    with pytest.raises(TypeError):
        Setting()  # type: ignore[call-arg]
