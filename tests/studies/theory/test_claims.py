"""Tests of every claim at a small scale: results that do not depend on the seed, because each is a theorem."""

import json

import pytest

from studies.theory import CLAIMS, Claim, Scale, Scope, Verdict
from studies.theory.report import write_report

SMALL = Scale(seed=1, problems=4)


class Claims(dict[int, Claim]):
    """Claims by number, measured when they are asked for."""

    def __missing__(self, number: int) -> Claim:
        self[number] = CLAIMS[number](SMALL)
        return self[number]


@pytest.fixture(scope="module")
def claims() -> Claims:
    return Claims()


@pytest.fixture(params=[(3, 4, 8, 9, 12), pytest.param(tuple(CLAIMS), marks=pytest.mark.nightly)], ids=["few", "all"])
def several_claims(request, claims) -> dict[int, Claim]:
    return {number: claims[number] for number in request.param}


def check(claim: Claim, setting: str):
    (matching,) = [check for check in claim.checks if check.setting == setting]
    return matching


def holds(claim: Claim, setting: str) -> bool:
    return check(claim, setting).holds


def test_claims_are_numbered_and_serialize(several_claims):
    assert list(CLAIMS) == list(range(1, 17))
    for number, claim in several_claims.items():
        assert claim.id == number
        assert json.loads(json.dumps(claim.to_json(), allow_nan=False))["verdict"] in set(Verdict)


def test_monotonic_improvement_holds_for_the_maximizer(claims):
    assert all(check.holds for check in claims[1].in_scope(Scope.CLAIM))
    assert all(check.figures["iterations"] > 0 for check in claims[1].checks)


def test_reverse_order_solves_in_one_sweep_and_can_lose_a_branch(claims):
    claim = claims[2]
    assert holds(claim, "reverse order, one sweep of the unclipped maximizer from full support (to within 1e-06)")
    assert not holds(claim, "natural order, one sweep of the unclipped maximizer from full support (to within 1e-06)")
    lost = check(claim, "reverse order, maximizer within 0.05, safe 0.3 against 0.1 x 0.02")
    assert not lost.holds
    assert lost.figures["J_end"] == pytest.approx(0.3)
    assert lost.counterexample["end"]["P(go)"] == 0.0
    assert claim.verdict is Verdict.COUNTEREXAMPLE


def test_soft_policies_lose_no_branch(claims):
    soft = "every probability at least 0.01, safe 0.3 against"
    for number, path in ((2, "0.1 x 0.02"), (6, "0.1 x 0.2")):
        (matching,) = [check for check in claims[number].checks if check.setting.endswith(f"{soft} {path}")]
        assert matching.holds
        # 0.99 for going, 0.99 for the right action, and the safe reward in the remaining 1%
        assert matching.figures["J_end"] == pytest.approx(0.99**2 + 0.01 * 0.3)
        assert "at least" not in claims[number].condition
        assert claims[number].qualification


def test_gae_bound_holds_and_is_reached(claims):
    assert claims[3].verdict is Verdict.HOLDS
    assert claims[3].checks[0].figures["bias_over_bound_worst_case_horizon_100"] == pytest.approx(1.0)


@pytest.mark.parametrize("number", [4, 8])
def test_group_mean_shrinks_advantage_and_gradient_by_the_same_factor(claims, number):
    factors = [check for check in claims[number].checks if "factor" in check.figures]
    assert len(factors) == 6
    for check in factors:
        own_reward = "mean of G" in check.setting
        assert check.holds == (not own_reward)
        assert check.figures["factor"] == pytest.approx(check.figures["(G-1)/G"] if own_reward else 1.0)
    assert claims[number].verdict is Verdict.COUNTEREXAMPLE
    assert "Leave-one-out" in claims[number].qualification


def test_structural_bias_formula_needs_rewards_at_the_end(claims):
    assert holds(claims[4], "the bias is V(s_t) - V(s_0): infinite group, rewards at the end")
    assert not holds(claims[4], "the bias is V(s_t) - V(s_0): infinite group, rewards every turn")


def test_perfect_critic_improves_but_can_lose_an_action(claims):
    assert holds(claims[6], "J never falls: maximizer, separate parameters")
    assert not holds(claims[6], "J reaches J*: maximizer, separate parameters, safe 0.3 against 0.1 x 0.2")


def test_grae_cannot_lower_j_under_the_argmax_over_all_policies(claims):
    claim = claims[7]
    assert holds(claim, "the drift is not 0 at the old policy")
    failed = [check.setting for check in claim.in_scope(Scope.CLAIM) if not check.holds]
    assert failed == [
        "J falls in the paper's two-action example: maximizer",
        "J falls at times: maximizer, separate parameters",
    ]
    assert holds(claim, "the mean advantage falls in no state: maximizer, separate parameters")
    assert claim.verdict is Verdict.COUNTEREXAMPLE


def test_one_turn_bandit_is_solved(claims):
    assert holds(claims[8], "J never falls: maximizer, separate parameters")
    assert holds(claims[8], "J reaches J*: maximizer, separate parameters")


def test_every_counterexample_is_shown(several_claims):
    for claim in several_claims.values():
        failed = [check for check in claim.in_scope(Scope.CLAIM) if not check.holds and not check.undecided]
        assert not failed or any(check.counterexample for check in failed), claim.title


def test_group_normalization_spoils_the_drift_but_not_separate_parameters(claims):
    assert all(check.holds for check in claims[9].in_scope(Scope.CLAIM))
    assert not holds(claims[9], "J falls at times: maximizer, separate parameters")


def test_batch_normalization_keeps_the_maximizer_and_group_normalization_does_not(claims):
    claim = claims[10]
    assert holds(claim, "the maximizer stays: batch normalization, separate parameters")
    assert holds(claim, "the maximizer stays: batch normalization, one distribution per turn")
    assert not holds(claim, "the maximizer changes: group normalization, separate parameters")
    assert holds(claim, "the gradient turns: group normalization, shared network")


def test_batch_normalization_turns_the_gradient_beside_a_kl_term_and_vanishes_under_adamw(claims):
    direction = "the gradient keeps its direction: batch normalization, shared network"
    assert holds(claims[10], direction)
    small, large = (check(claims[10], f"{direction}, KL {coef}") for coef in (0.002, 0.02))
    assert not small.holds
    assert large.figures["smallest_cosine"] < 0 < small.figures["smallest_cosine"]
    moved = "20 iterations move as far, to within 10%: batch normalization, shared network"
    assert check(claims[10], f"{moved}, gradient ascent").figures["mean_length_ratio"] > 2
    assert holds(claims[10], f"{moved}, AdamW")


def test_identity_holds_to_rounding_with_separate_parameters_only(claims):
    claim = claims[11]
    assert all(check.holds for check in claim.in_scope(Scope.CLAIM))
    assert not any(check.holds for check in claim.in_scope(Scope.PRACTICE))
    clipped = claim.curves["clip_fraction"]
    assert clipped["product"]["1"] > clipped["length_normalized"]["1"]


def test_subtracting_a_constant_changes_the_clipped_maximizer(claims):
    assert holds(claims[12], "the mean of A is 0 over the batch")
    assert not holds(claims[12], "the mean of A is 0 over the survivors of the last pool")
    assert not holds(claims[12], "the clipped maximizer stays when 0.2 is subtracted from a whole batch, one turn")
    assert holds(claims[12], "J does not fall when the survivors' mean is subtracted, separate parameters")


@pytest.mark.nightly
def test_without_m_sequential_and_simultaneous_updates_agree_with_separate_parameters(claims):
    for curves in claims[13].curves.values():
        assert curves["reverse, no M"] == pytest.approx(curves["simultaneous"], abs=1e-3)


def test_every_order_reaches_the_optimum_where_support_is_kept(claims):
    soft = [check for check in claims[14].checks if "at least" in check.setting]
    assert len(soft) == 6
    for check in soft:
        assert check.figures["solved"] == check.figures["problems"]
        assert check.figures["largest_move_of_another_order"] < 1e-9
    assert holds(claims[14], "natural order stops short of J*: maximizer, probabilities may become 0")
    assert holds(claims[14], "reverse order reaches J*: maximizer, probabilities may become 0")
    assert claims[14].verdict is Verdict.COUNTEREXAMPLE


def test_stochastic_transitions_keep_the_guarantees_if_the_state_is_observed(claims):
    assert all(check.holds for check in claims[15].in_scope(Scope.CLAIM))
    sweep = "one sweep in reverse order reaches J*: each turn observes"
    assert not holds(claims[15], f"{sweep} s_0 and earlier actions only")
    assert claims[15].verdict is Verdict.CONDITIONAL


def test_kl_penalty_moves_the_fixed_point_and_keeps_support(claims):
    claim = claims[16]
    assert not any(check.holds for check in claim.in_scope(Scope.CLAIM))
    assert all(check.holds for check in claim.in_scope(Scope.COMPARISON))
    fixed = check(claim, "the regularized optimum is a fixed point of every order").figures
    assert fixed["largest_move_from_it"] < 1e-12
    assert fixed["from_the_best_policy"] > 1e-4


def test_same_seed_gives_the_same_figures(claims):
    assert CLAIMS[9](SMALL).to_json() == claims[9].to_json()
    assert CLAIMS[9](Scale(seed=2, problems=4)).to_json() != claims[9].to_json()


def test_report_shows_every_claim_and_is_reproducible(several_claims, tmp_path):
    page = write_report(list(several_claims.values()), tmp_path / "report").read_text()
    for number, claim in several_claims.items():
        name = f"figures/claim-{number:02}.svg"
        assert f"]({name})" in page
        assert claim.qualification in page
        assert (tmp_path / "report" / name).stat().st_size > 1000
    first = (tmp_path / "report" / "figures" / "claim-12.svg").read_bytes()
    write_report(list(several_claims.values()), tmp_path / "report")
    assert (tmp_path / "report" / "figures" / "claim-12.svg").read_bytes() == first
