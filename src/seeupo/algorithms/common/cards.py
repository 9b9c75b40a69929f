"""Algorithm cards: idea, formula, guarantees, measurements and cost of each algorithm.

`seeupo algorithms` and docs/algorithms show them. Tests check the costs against the calls that an engine receives, and
verdicts and figures against the results of studies/theory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Converges = Literal["yes", "no", "not stated"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Passes over all turns of an iteration, each of which computes every token once, and optimizer steps.

    Formulas in E (epochs), B (mini-batches per epoch; for SeeUPO per turn and epoch), T (turns) and K (1 with a KL to
    the reference policy in the loss or the reward, 0 without). They are upper bounds, because turns without a gradient
    are skipped. Sampling is not included, and `split` and `level` have their defaults.

    Attributes:
        forward: Forward passes of the policy, those of optimizer steps included.
        backward: Backward passes of the policy.
        steps: Optimizer steps of the policy.
        critic_forward: Forward passes of the critic; empty without a critic.
        critic_backward: Backward passes of the critic.
        critic_steps: Optimizer steps of the critic.
        by_default: Forward and backward passes with default options; the critic's follow a plus sign.
    """

    forward: str
    backward: str = "E"
    steps: str = "E * B"
    critic_forward: str = ""
    critic_backward: str = ""
    critic_steps: str = ""
    by_default: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class AlgorithmCard:
    """Properties of one algorithm.

    Attributes:
        title: Usual name.
        idea: Two sentences.
        formula: Plain text of at most 78 columns.
        advantage: Advantage estimator, as in the paper's Table 1: GAE has a critic, GRAE is group-relative.
        advantage_details: Exact definition of the advantage.
        update: Policy update, as in Table 1: PPU clips ratios, HAML does so turn by turn, REINFORCE has no clip.
        update_details: Exact definition of the update.
        level: Unit that has one ratio, as in Table 1.
        single_turn: Whether it converges with one turn, as Table 1 claims.
        multi_turn: Whether it converges with several turns, as Table 1 claims.
        guarantees: What the paper proves about it.
        conditions: Conditions of these proofs, and whether they are met here.
        verdicts: Verdicts of the claims of studies/theory that concern it, by claim number.
        measurements: Findings of studies/theory.
        use_when: When to choose it.
        source: Publication.
    """

    title: str
    idea: str
    formula: str
    advantage: Literal["GAE", "GRAE"]
    advantage_details: str
    update: Literal["PPU", "REINFORCE", "HAML"]
    update_details: str
    level: Literal["token", "sequence"]
    single_turn: Converges
    multi_turn: Converges
    guarantees: str
    conditions: str
    verdicts: Mapping[int, str]
    measurements: str
    cost: Cost
    use_when: str
    source: str


SEEUPO = AlgorithmCard(
    title="SeeUPO",
    idea="Each turn is a virtual agent, and the turns are updated one after another, from the last to the first. Each "
    "update is weighted by the carried advantage M, the trajectory's advantage times the ratios of the turns already "
    "updated, so that an early turn is credited with the later turns as they are after their updates.",
    formula="""\
A_i = (R_i - mean R of the group) / std of these over the batch,   M_i = A_i

for t = T, ..., 1:
    J_t = 1/N sum_i  min( r_i M_i, clip(r_i, 1 - low, 1 + high) M_i )
    step up J_t;  then  M_i = r_i M_i  with the new r_i

r_i = ( pi_theta(a_i^t) / pi_theta_k(a_i^t) )^(1/|a_i^t|)""",
    advantage="GRAE",
    advantage_details="reward minus the group mean, divided by the standard deviation over the batch, then multiplied "
    "by the ratios of the turns already updated",
    update="HAML",
    update_details="turn by turn in reverse order, with one clipped ratio per action",
    level="sequence",
    single_turn="not stated",
    multi_turn="yes",
    guarantees="J never decreases, in any order of the turns (Theorem 1). In reverse order it converges to the optimal "
    "joint policy (Theorem 2).",
    conditions="Exact advantages, separate parameters for each turn, product ratios, the exact maximizer of each "
    "turn's objective, and a positive probability of every history, which the paper does not state. The defaults are "
    "gradient steps on shared weights with length-normalized ratios, which the proofs do not cover.",
    verdicts={
        1: "holds under a condition",
        2: "counterexample",
        11: "holds under a condition",
        13: "holds under a condition",
    },
    measurements="With separate parameters J decreased in none of 480 iterations of the exact maximizer; with one "
    "network and large steps it decreased in 8%. The clipped maximizer ended below the optimum in 2 of 20 problems, "
    "because an action whose probability has reached 0 is never sampled again. Reverse order with M learned long paths "
    "faster than without M, once steps were large enough.",
    cost=Cost(forward="2 + E + K", steps="E * B * T", by_default=("3", "1")),
    use_when="Episodes of several turns with one reward at the end, without memory or data for a critic. Steps must be "
    "large enough for the update of a later turn to matter to an earlier one within an iteration. With one turn it "
    "equals GSPO with the same clip and normalization.",
    source="Hu et al., SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees (arXiv:2602.06554)",
)

PPO = AlgorithmCard(
    title="PPO",
    idea="A critic predicts the return before each token, and a token is reinforced if the result was better than "
    "predicted. The ratio of each token is clipped, so that several steps can be taken on the same trajectories.",
    formula="""\
policy:  mean over tokens  min( r_t A_t, clip(r_t, 1 - low, 1 + high) A_t )
critic:  mean over tokens  1/2 max( (V_t - G_t)^2, (V_t' - G_t)^2 )

A_t = sum_l (gamma lambda)^l delta_{t+l}
delta_t = R_t + gamma V_k,t+1 - V_k,t
G_t = A_t + V_k,t,   V_t' = clip(V_t, V_k,t - c, V_k,t + c)
r_t = pi_theta(token) / pi_theta_k(token)""",
    advantage="GAE",
    advantage_details="over the action tokens of all turns, with the critic's values, standardized over all tokens of "
    "the batch",
    update="PPU",
    update_details="one clipped ratio per token, all tokens weighted equally, or one per turn; squared errors for the "
    "critic",
    level="token",
    single_turn="yes",
    multi_turn="yes",
    guarantees="The bias of GAE is at most (1 + gamma - 2 gamma lambda) / (1 - gamma lambda) times the critic's "
    "largest error (Theorem 3). With a perfect critic J never decreases and converges to its optimum (Theorem 6).",
    conditions="A critic without error, bounded rewards, exact expectations, the exact maximizer of the clipped "
    "objective, and no action that loses all its probability, which the paper does not state. No trained critic is "
    "perfect, and standardization subtracts a mean, which changes a clipped maximizer (claim 12).",
    verdicts={3: "holds", 6: "counterexample", 12: "counterexample"},
    measurements="The bound held everywhere, and the worst critic errors come arbitrarily close to it. With exact "
    "advantages the clipped maximizer never decreased J, but it ended up to 0.018 short of the optimum, and at 0.3 "
    "instead of 1 on a chain of two turns where the rewarding end looked bad at first. With gradient steps on a shared "
    "network J decreased once in 100 iterations.",
    cost=Cost(
        forward="2 + E + K",
        critic_forward="1 + E",
        critic_backward="E",
        critic_steps="E * B",
        by_default=("3 + 2", "1 + 1"),
    ),
    use_when="Long episodes whose tokens deserve different credit, with memory for a second model and enough episodes "
    "to train it. It also learns from groups with equal rewards, which group-relative advantages skip. Watch "
    "`explained_variance`: near 0 the critic does not help yet.",
    source="Schulman et al. 2017, Proximal Policy Optimization Algorithms (arXiv:1707.06347); GAE: Schulman et al. "
    "2016 (arXiv:1506.02438); per turn: Li et al. 2025, Turn-PPO (arXiv:2512.17008)",
)

GRPO = AlgorithmCard(
    title="GRPO",
    idea="Attempts at the same task are compared with one another: all tokens of an attempt above the group mean are "
    "reinforced, those of one below it are discouraged. The ratio of each token is clipped as in PPO, and no critic is "
    "needed.",
    formula="""\
J = 1/G sum_i  1/|o_i| sum_t  ( C_it - beta K_it )
C_it = min( r_it A_i, clip(r_it, 1 - low, 1 + high) A_i )
K_it = q - log q - 1,   q = pi_ref(token) / pi_theta(token)

A_i = (R_i - mean R) / std R,   r_it = pi_theta(token) / pi_theta_k(token)""",
    advantage="GRAE",
    advantage_details="reward minus the group mean, divided by the group's standard deviation, the same for all tokens",
    update="PPU",
    update_details="one clipped ratio per token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="no",
    multi_turn="no",
    guarantees="A group-relative advantage has the bias V(s_t) - V(s_0), but its unclipped gradient is correct without "
    "discounting (Theorem 4). With a clip that bias voids the guarantee, and there are policies from which J decreases "
    "(Theorem 7). Dividing by the group's standard deviation voids it too (Theorem 9).",
    conditions="None: nothing is guaranteed, not even for one turn, because the states are those within a response.",
    verdicts={
        4: "counterexample",
        7: "counterexample",
        9: "holds under a condition",
        10: "holds under a condition",
    },
    measurements="Gradient steps on shared parameters do decrease J from some policies: in 2 of 40 updates with one "
    "distribution per turn, in 4 of 40 with a network and large steps (in 2 with true advantages), never with "
    "separate parameters. The paper's own example is not such a case. A baseline that includes the trajectory's own "
    "reward scales the expected gradient by (G-1)/G. Dividing by the group's standard deviation rotated the gradient "
    "of a network by up to 78 degrees.",
    cost=Cost(forward="2 + E + K", by_default=("4", "1")),
    use_when="Single responses with a verifiable reward, or as the usual point of comparison. If long failures grow "
    "longer, or tasks differ much in the spread of their rewards, use the options of Dr. GRPO: `length_term` and "
    "`deviation_term` off.",
    source="Shao et al. 2024, DeepSeekMath (arXiv:2402.03300); Dr. GRPO: Liu et al. 2025 (arXiv:2503.20783)",
)

GSPO = AlgorithmCard(
    title="GSPO",
    idea="The reward belongs to a whole response, and so do the ratio and the clip: one for all its tokens, the "
    "geometric mean of their ratios. Such a ratio changes little, so the clip range is about a thousand times narrower "
    "than PPO's.",
    formula="""\
J = 1/G sum_i  min( s_i A_i, clip(s_i, 1 - low, 1 + high) A_i )

s_i = ( pi_theta(o_i) / pi_theta_k(o_i) )^(1/|o_i|)
A_i = (R_i - mean R) / std R""",
    advantage="GRAE",
    advantage_details="reward minus the group mean, divided by the group's standard deviation",
    update="PPU",
    update_details="one clipped, length-normalized ratio per trajectory, or per turn",
    level="sequence",
    single_turn="yes",
    multi_turn="no",
    guarantees="With one turn and whole responses as actions, clipped updates on group-relative advantages never "
    "decrease J and converge to its optimum (Theorem 8). Dividing by the group's standard deviation voids that unless "
    "it is 1 (Theorem 9). With several turns Theorem 7 applies, as for GRPO.",
    conditions="One turn, product ratios, the exact maximizer, and no division by the group's standard deviation. The "
    'default normalize = "group" is that of the GSPO paper and does divide; "none" and "batch" do not. No proof covers '
    "length-normalized ratios.",
    verdicts={
        7: "counterexample",
        8: "counterexample",
        9: "holds under a condition",
        10: "holds under a condition",
    },
    measurements="With one turn and no division the clipped maximizer solved every problem and J never decreased, "
    "although the expected advantage is (G-1)/G of the true one (claim 8). With division J decreased in 29% of the "
    "iterations where all tasks shared one distribution, and never where each task had separate parameters: tasks "
    "with a small spread of rewards weigh as much as those with a large one.",
    cost=Cost(forward="2 + 2 * E - 1/B + K", by_default=("3.75", "1")),
    use_when="Long responses, where ratios of single tokens are noisy, and models whose token probabilities jump "
    "between versions, such as mixtures of experts. Watch `clip_fraction`: it should be far above PPO's, and 0 means "
    "that the clip has no effect.",
    source="Zheng et al. 2025, Group Sequence Policy Optimization (arXiv:2507.18071)",
)

RLOO = AlgorithmCard(
    title="RLOO",
    idea="Plain REINFORCE on whole trajectories: each is reinforced by its reward minus the mean reward of the other "
    "attempts at its task. The trajectory's own reward is not in that mean, so the expected gradient is exact in "
    "magnitude, not only in direction.",
    formula="""\
gradient = 1/G sum_i  A_i  grad log pi_theta(o_i)
A_i = R_i - mean of R_j over j != i

that is, at theta_k, of  J = 1/G sum_i  A_i pi_theta(o_i) / pi_theta_k(o_i)""",
    advantage="GRAE",
    advantage_details="reward minus the mean of the others in the group, without division",
    update="REINFORCE",
    update_details="the product ratio of a whole trajectory, without a clip",
    level="sequence",
    single_turn="yes",
    multi_turn="no",
    guarantees="Without discounting the expected update is the gradient of J; J never decreases and converges "
    "(Theorem 5). The paper's abstract, not the theorem, states that the limit is the optimum.",
    conditions="No discounting, bounded rewards, a finite horizon, and new trajectories for every step: further steps "
    "on the same ones have a bias of the order of the step size. The proof takes exact policy iteration for gradient "
    "steps. Table 1 says no for several turns because of discounting; here an episode has one reward at its end and no "
    "discounting, so Theorem 5 applies to several turns as well.",
    verdicts={4: "counterexample", 5: "holds under a condition"},
    measurements="Leave-one-out gradients were exact; claim 4 fails for baselines that include the own reward, and in "
    "its formula of the bias if there are rewards before the end. With exact gradients J never decreased for tables. "
    "It did with a network at a large learning rate (in 14 of 200 iterations) and with sampled groups (in 13 of 200, "
    "by at most 0.0007). Whether the limit is the optimum could not be decided.",
    cost=Cost(forward="2 + 2 * E - 1/B + K", by_default=("3", "1")),
    use_when="The simplest algorithm here: no clip, no normalization, one step per iteration by default. A good "
    "baseline, and with several mini-batches and a tuned rate the fastest learner of study (a). Only "
    "the learning rate limits an update: at twice the tuned one, runs fell to 0 for up to 16 iterations.",
    source="Ahmadian et al. 2024, Back to Basics: Revisiting REINFORCE Style Optimization (arXiv:2402.14740), after "
    "Kool et al. 2019",
)

REINFORCE_PP = AlgorithmCard(
    title="REINFORCE++ with baseline",
    idea="The baseline is the group mean, but advantages are standardized over all tokens of the batch instead of "
    "group by group. The ratio of each token is then clipped as in PPO.",
    formula="""\
J = 1/N sum_i  1/|o_i| sum_t  ( C_it - beta K_it )
C_it = min( r_it A_it, clip(r_it, 1 - low, 1 + high) A_it )
K_it = q - log q - 1,   q = pi_ref(token) / pi_theta(token)

A_it = (B_it - mean B) / std B   over all tokens of the batch
B_it = R_i - mean R of group - beta_r sum_{u >= t} log(pi_theta_k / pi_ref)""",
    advantage="GRAE",
    advantage_details="reward minus the group mean, standardized over all tokens of the batch",
    update="PPU",
    update_details="one clipped ratio per token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="no",
    multi_turn="no",
    guarantees="As for GRPO: the advantage has the bias V(s_t) - V(s_0) (Theorem 4), which with a clip voids the "
    "guarantee (Theorem 7). Dividing by one standard deviation for the whole batch does no harm (appendix).",
    conditions="None: nothing is guaranteed, not even for one turn, because the states are those within a response.",
    verdicts={
        4: "counterexample",
        7: "counterexample",
        10: "holds under a condition",
        12: "counterexample",
    },
    measurements="Dividing by the batch's standard deviation changed no maximizer and no direction of a gradient. "
    "Subtracting a constant is not as harmless as the paper states: 0.2 less changed the clipped maximizer in 9 of 20 "
    "problems. The mean over tokens is not 0 where long trajectories do better or worse, so groups with equal rewards "
    "get a small gradient too.",
    cost=Cost(forward="2 + E + K", by_default=("4", "1")),
    use_when="Tasks that differ much in the spread of their rewards, with token-level clipping: one standard deviation "
    "for all keeps their proportions, where GRPO gives each group the same weight.",
    source="Hu et al. 2025, REINFORCE++ (arXiv:2501.03262)",
)

GIGPO = AlgorithmCard(
    title="GiGPO",
    idea="Attempts at the same task often pass through the same states. Beside the trajectory's advantage of GRPO, "
    "each turn is compared with the other turns of the group that start from the same state, by the discounted return "
    "that followed.",
    formula="""\
A_it = (R_i - mean R) / std R + w (R_it - mean S) / std S
S = returns R_ju of the group's turns with state s_ju = s_it
R_it = r_it + gamma R_i,t+1,   with the outcome in the last turn

J = 1/G sum_i  1/|o_i| sum_t sum_tokens  ( C - beta K )
C = min( r A_it, clip(r, 1 - low, 1 + high) A_it )
K = q - log q - 1,   q = pi_ref(token) / pi_theta(token)""",
    advantage="GRAE",
    advantage_details="normalized reward of the trajectory within its group, plus the normalized return of the turn "
    "among turns that start from the same state",
    update="PPU",
    update_details="one clipped ratio per token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="not stated",
    multi_turn="not stated",
    guarantees="The SeeUPO paper states nothing about it. Where every state occurs once it is GRPO, with GRPO's bias.",
    conditions="None: nothing is guaranteed. The second term compares returns from the same state, so it has no bias "
    "V(s_t) - V(s_0); but it adds to the first one, which has it.",
    verdicts={},
    measurements="Not part of the theory study.",
    cost=Cost(forward="2 + E + K", by_default=("4", "1")),
    use_when="Tasks whose attempts meet in the same states, such as games and web pages, with states that the "
    "environment can name. Watch `lone_turn_fraction`: near 1 only the first turn is compared, and it is GRPO with "
    "more weight on that turn.",
    source="Feng et al. 2025, Group-in-Group Policy Optimization for LLM Agent Training (arXiv:2505.10978)",
)

MT_GRPO = AlgorithmCard(
    title="MT-GRPO",
    idea="A step reward belongs to its own turn. Each turn before the last is reinforced by its step reward relative "
    "to the group's at the same turn, plus the outcome's advantage; the last turn by the outcome's advantage alone.",
    formula="""\
A_it = (r_it - mean r_t) / std r_t + lambda A_i   before the last turn
A_it = A_i                                        in the last turn
A_i = (O_i - mean O) / std O

J = 1/G sum_i  1/|o_i| sum_t sum_tokens  ( C - beta K )
C = min( r A_it, clip(r, 1 - low, 1 + high) A_it )
K = q - log q - 1,   q = pi_ref(token) / pi_theta(token)""",
    advantage="GRAE",
    advantage_details="normalized step reward among the group's turns of the same index, plus the weighted normalized "
    "outcome; in the last turn the outcome alone",
    update="PPU",
    update_details="one clipped ratio per token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="not stated",
    multi_turn="not stated",
    guarantees="The SeeUPO paper states nothing about it. Without step rewards it is GRPO, with GRPO's bias.",
    conditions="None: nothing is guaranteed. A turn is not credited with later step rewards, so an action that enables "
    "them is not reinforced by them; and an action that earns a step reward at the cost of the outcome may be.",
    verdicts={},
    measurements="Not part of the theory study.",
    cost=Cost(forward="2 + E + K", by_default=("3", "1")),
    use_when="Environments with a trustworthy reward for single steps, such as a tool call that succeeded, where the "
    "outcome alone is rare. Without step rewards it is GRPO.",
    source="Zeng et al. 2025, Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment "
    "(arXiv:2505.11821)",
)

CARDS: Mapping[str, AlgorithmCard] = {
    "seeupo": SEEUPO,
    "ppo": PPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce_pp": REINFORCE_PP,
    "gigpo": GIGPO,
    "mt_grpo": MT_GRPO,
}
"""Cards by registry name. A registered custom algorithm may have none."""


def comparison_table() -> list[str]:
    """Return the lines of the Markdown table in docs/algorithms/README.md."""
    lines = [
        "| algorithm | advantage | update | level | single-turn | multi-turn | forward passes | backward passes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, card in CARDS.items():
        cells = [f"[`{name}`]({name}.md)", card.advantage, card.update, card.level]
        cells += [card.single_turn, card.multi_turn, *card.cost.by_default]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
