import json

from seeupo.studies.theory import Check, Claim, Scope, Verdict


def claim(*checks: Check) -> Claim:
    return Claim(id=1, title="t", claim="c", problems="p", checks=checks)


YES = Check("a", True, {"x": 1.0})
NO = Check("b", False, {"x": 2.0}, counterexample={"why": "see"})
NO_ELSEWHERE = Check("c", False, {}, Scope.PRACTICE)
NO_COMPARED = Check("e", False, {}, Scope.COMPARISON)
OPEN = Check("d", False, {}, undecided=True)


def test_verdicts_follow_from_the_checks():
    assert claim(YES).verdict is Verdict.HOLDS
    assert claim(YES, NO).verdict is Verdict.COUNTEREXAMPLE
    assert claim(YES, NO_ELSEWHERE).verdict is Verdict.CONDITIONAL
    assert claim(YES, NO_COMPARED).verdict is Verdict.HOLDS
    assert claim(YES, OPEN).verdict is Verdict.CONDITIONAL
    assert claim(OPEN, NO_ELSEWHERE).verdict is Verdict.UNDECIDED
    assert claim(OPEN, NO).verdict is Verdict.COUNTEREXAMPLE


def test_the_condition_says_where_it_held_and_where_not():
    assert claim(YES).condition is None
    assert claim(YES, NO_ELSEWHERE).condition == "held: a. did not: c"


def test_json_has_the_documented_fields():
    data = json.loads(json.dumps(claim(YES, NO, OPEN).to_json()))
    assert set(data) >= {"id", "claim", "setting", "figures", "verdict"}
    assert data["verdict"] == "counterexample"
    assert [check["holds"] for check in data["figures"]["checks"]] == [True, False, None]
    assert data["figures"]["checks"][1]["counterexample"] == {"why": "see"}
