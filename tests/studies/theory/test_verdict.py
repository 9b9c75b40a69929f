import json

import pytest

from studies.theory import Check, Claim, Scope, Verdict


def claim(*checks: Check) -> Claim:
    return Claim(id=1, title="t", claim="c", problems="p", checks=checks, qualification="q")


HELD = Check("a", True, {"x": 1.0})
FAILED = Check("b", False, {"x": 2.0}, counterexample={"why": "see"})
FAILED_IN_PRACTICE = Check("c", False, {}, Scope.PRACTICE)
FAILED_COMPARISON = Check("e", False, {}, Scope.COMPARISON)
UNDECIDED = Check("d", False, {}, undecided=True)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([HELD], Verdict.HOLDS),
        ([HELD, FAILED], Verdict.COUNTEREXAMPLE),
        ([HELD, FAILED_IN_PRACTICE], Verdict.CONDITIONAL),
        ([HELD, FAILED_COMPARISON], Verdict.HOLDS),
        ([HELD, UNDECIDED], Verdict.CONDITIONAL),
        ([UNDECIDED, FAILED_IN_PRACTICE], Verdict.UNDECIDED),
        ([UNDECIDED, FAILED], Verdict.COUNTEREXAMPLE),
    ],
)
def test_verdict_follows_from_the_checks(checks, verdict):
    assert claim(*checks).verdict is verdict


def test_condition_names_where_the_claim_held_and_failed():
    assert claim(HELD).condition is None
    held, failed = claim(HELD, FAILED_IN_PRACTICE).condition.split(". ")
    assert held.endswith(HELD.setting)
    assert failed.endswith(FAILED_IN_PRACTICE.setting)


def test_json_has_the_documented_fields():
    data = json.loads(json.dumps(claim(HELD, FAILED, UNDECIDED).to_json()))
    assert set(data) >= {"id", "claim", "setting", "figures", "verdict", "qualification"}
    assert data["verdict"] == "counterexample"
    assert [check["holds"] for check in data["figures"]["checks"]] == [True, False, None]
    assert data["figures"]["checks"][1]["counterexample"] == {"why": "see"}
