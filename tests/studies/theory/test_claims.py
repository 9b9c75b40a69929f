"""Each claim at a small scale: what must come out whatever the seed, because it is a theorem or its refutation."""

import json

import pytest

from seeupo.studies.theory import CLAIMS, Claim, Scale, Scope, Verdict

SMALL = Scale(seed=1, problems=4)


@pytest.fixture(scope="module")
def measured() -> dict[int, Claim]:
    return {number: measure(SMALL) for number, measure in CLAIMS.items()}


def holds(claim: Claim, setting: str) -> bool:
    (found,) = [check for check in claim.checks if check.setting == setting]
    return found.holds


def test_there_are_thirteen_claims_that_serialize(measured):
    assert list(measured) == list(range(1, 14))
    for number, claim in measured.items():
        assert claim.id == number
        assert json.loads(json.dumps(claim.to_json(), allow_nan=False))["verdict"] in set(Verdict)


def test_monotonic_improvement_holds_for_the_maximizer(measured):
    assert all(check.holds for check in measured[1].of(Scope.CLAIM))
    assert all(check.figures["iterations"] > 0 for check in measured[1].checks)


def test_reverse_order_solves_in_one_sweep_and_can_lose_a_branch(measured):
    claim = measured[2]
    assert holds(claim, "reverse order, one sweep of the unclipped maximizer from full support (to within 1e-06)")
    assert not holds(claim, "natural order, one sweep of the unclipped maximizer from full support (to within 1e-06)")
    assert not holds(claim, "reverse order, maximizer within 0.05, safe 0.3 against 0.1 x 0.02")
    (lost,) = [check for check in claim.checks if "within 0.05, safe 0.3 against 0.1" in check.setting]
    assert lost.figures["J_end"] == pytest.approx(0.3)
    assert lost.counterexample["end"]["P(go)"] == 0.0
    assert claim.verdict is Verdict.COUNTEREXAMPLE


def test_gae_bound_holds_and_is_reached(measured):
    assert measured[3].verdict is Verdict.HOLDS
    assert measured[3].checks[0].figures["bias_over_bound_worst_case_horizon_100"] == pytest.approx(1.0)


def test_the_group_mean_shrinks_the_gradient(measured):
    for check in measured[4].checks:
        if "mean of G" in check.setting:
            assert not check.holds
            assert check.figures["factor"] == pytest.approx(check.figures["(G-1)/G"])
        if "leave one out" in check.setting:
            assert check.holds
    assert measured[4].verdict is Verdict.COUNTEREXAMPLE
    assert holds(measured[4], "the bias is V(s_t) - V(s_0): infinite group, rewards at the end")
    assert not holds(measured[4], "the bias is V(s_t) - V(s_0): infinite group, rewards every turn")


def test_the_papers_example_does_not_degrade(measured):
    claim = measured[7]
    assert holds(claim, "the drift is not 0 at the old policy")
    assert not holds(claim, "the paper's two-action example is one, under the maximizer")
    assert not holds(claim, "J falls at times: maximizer, separate parameters")


def test_a_perfect_critic_improves_but_can_lose_an_action(measured):
    assert holds(measured[6], "J never falls: maximizer, separate parameters")
    setting = "J reaches J*: maximizer, separate parameters, safe 0.3 against 0.1 x 0.2"
    assert not holds(measured[6], setting)


def test_every_counterexample_is_shown(measured):
    for claim in measured.values():
        failed = [check for check in claim.of(Scope.CLAIM) if not check.holds and not check.undecided]
        assert not failed or any(check.counterexample for check in failed), claim.title


def test_a_bandit_is_solved(measured):
    assert holds(measured[8], "J never falls: maximizer, separate parameters")
    assert holds(measured[8], "J reaches J*: maximizer, separate parameters")


def test_group_normalization_spoils_the_drift_but_not_separate_parameters(measured):
    assert all(check.holds for check in measured[9].of(Scope.CLAIM))
    assert not holds(measured[9], "J falls at times: maximizer, separate parameters")


def test_normalization_and_the_maximizer(measured):
    claim = measured[10]
    assert holds(claim, "the maximizer stays: batch normalization, separate parameters")
    assert holds(claim, "the maximizer stays: batch normalization, one distribution per turn")
    assert not holds(claim, "the maximizer changes: group normalization, separate parameters")
    assert holds(claim, "the gradient turns: group normalization, shared network")


def test_the_identity_holds_to_rounding_with_separate_parameters_only(measured):
    claim = measured[11]
    assert all(check.holds for check in claim.of(Scope.CLAIM))
    assert not any(check.holds for check in claim.of(Scope.PRACTICE))
    clipped = claim.curves["clip_fraction"]
    assert clipped["product"]["1"] > clipped["length_normalized"]["1"]


def test_survivors_have_another_mean(measured):
    assert holds(measured[12], "the mean of A is 0 over the batch")
    assert not holds(measured[12], "the mean of A is 0 over the survivors of the last pool")
    assert not holds(measured[12], "the clipped maximizer stays when 0.2 is subtracted from a whole batch, one turn")
    assert holds(measured[12], "J does not fall when the survivors' mean is subtracted, separate parameters")


def test_no_m_is_the_same_as_simultaneous_updates_with_separate_parameters(measured):
    for curves in measured[13].curves.values():
        assert curves["reverse, no M"] == pytest.approx(curves["simultaneous"], abs=1e-3)


def test_the_same_seed_gives_the_same_figures(measured):
    assert CLAIMS[11](SMALL).to_json() == measured[11].to_json()
    assert CLAIMS[11](Scale(seed=2, problems=4)).to_json() != measured[11].to_json()


def test_the_report_shows_every_claim(measured, tmp_path):
    from seeupo.studies.theory.report import write_report

    page = write_report(list(measured.values()), tmp_path / "report").read_text()
    for number in CLAIMS:
        name = f"claim-{number:02}.svg"
        assert f"]({name})" in page
        assert (tmp_path / "report" / name).stat().st_size > 1000
    first = (tmp_path / "report" / "claim-13.svg").read_bytes()
    write_report(list(measured.values()), tmp_path / "report")
    assert (tmp_path / "report" / "claim-13.svg").read_bytes() == first
