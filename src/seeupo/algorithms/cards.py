"""What there is to know about each algorithm before choosing one: its idea, its guarantees, its cost.

`seeupo algorithms` and docs/algorithms show what stands here. Tests hold the costs to what an engine is asked for, and
the verdicts to what `seeupo theory` has measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Converges = Literal["yes", "no", "not said"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Passes over all samples of an iteration, each of which computes every token once; and optimizer steps.

    As formulas in E (epochs), B (mini-batches of an epoch; in SeeUPO of a turn's epoch), T (turns) and K (1 with a KL
    to the reference in loss or reward, otherwise 0). Samples without a gradient are left out, so that it may be less.
    Sampling is not in it, and the options that choose what is stepped on together (`split`, `level`) are as by default.

    Attributes:
        forward, backward, steps: of the policy. A step's own forward pass is among the forward ones.
        critic_forward, critic_backward, critic_steps: of the critic; empty where there is none.
        by_default: forward and backward passes with the default options, the critic's behind a plus sign.
    """

    forward: str
    backward: str = "E"
    steps: str = "E * B"
    critic_forward: str = ""
    critic_backward: str = ""
    critic_steps: str = ""
    by_default: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One algorithm.

    Attributes:
        title: what people call it.
        idea: in two sentences.
        formula: as plain text.
        advantage, update, level: as the paper's Table 1 has them. GAE needs a critic, GRAE is relative to the group;
            PPU is a clipped ratio, HAML one turn after another.
        advantage_here, update_here: what these are here, exactly.
        single_turn, multi_turn: whether it converges, as the paper's Table 1 claims.
        proved: what the paper proves of it.
        conditions: under which that holds, and whether they are met here.
        verdicts: of the claims of `seeupo theory` that speak of it, by their numbers.
        measured: what was found there.
        use: when to take it.
        source: the paper that it is from.
    """

    title: str
    idea: str
    formula: str
    advantage: Literal["GAE", "GRAE"]
    advantage_here: str
    update: Literal["PPU", "REINFORCE", "HAML"]
    update_here: str
    level: Literal["token", "sequence"]
    single_turn: Converges
    multi_turn: Converges
    proved: str
    conditions: str
    verdicts: Mapping[int, str]
    measured: str
    cost: Cost
    use: str
    source: str


SEEUPO = Facts(
    title="SeeUPO",
    idea="Each turn is an agent of its own, and the turns are updated one after another, the last one first. Each is "
    "weighted by M, the trajectory's advantage times the ratios that the turns updated before it have just produced, "
    "so that an early turn is judged by what the later turns have become.",
    formula="""\
A_i = (R_i - mean R of the group) / std of these over the batch,   M_i = A_i

for t = T, ..., 1:
    J_t = 1/N sum_i  min( r_i M_i, clip(r_i, 1 - low, 1 + high) M_i )
    step up J_t;  then  M_i = r_i M_i  with the new r_i

r_i = ( pi_theta(a_i^t) / pi_theta_k(a_i^t) )^(1/|a_i^t|)""",
    advantage="GRAE",
    advantage_here="reward minus the mean of the group, divided by the deviation over the batch; then multiplied by "
    "the ratios of the turns that were updated before",
    update="HAML",
    update_here="turn by turn in reverse order, one clipped ratio for each turn's whole action",
    level="sequence",
    single_turn="not said",
    multi_turn="yes",
    proved="J never falls, in any order of the turns (Theorem 1). In reverse order it converges to the best joint "
    "policy (Theorem 2).",
    conditions="Exact advantages, parameters of its own for each turn, product ratios, the true maximiser of each "
    "turn's objective; and every history must keep a positive probability, which the paper does not say. The defaults "
    "are gradient steps on shared weights with length-normalised ratios: the proofs do not cover them.",
    verdicts={
        1: "holds under a condition",
        2: "counterexample",
        11: "holds under a condition",
        13: "holds under a condition",
    },
    measured="With separate parameters J fell in none of 480 iterations of the maximiser; with one network and large "
    "steps it fell in 8%. The clipped maximiser ended short of the best policy in 2 of 20 problems, because an action "
    "whose probability has reached 0 is never sampled again. Reverse order with M learned long paths faster than "
    "without M, once steps were large enough.",
    cost=Cost(forward="3 + E - 1/T + K", steps="E * B * T", by_default=("4 - 1/T", "1")),
    use="Episodes of several turns with one reward at the end, and no memory or data for a critic. Steps must be large "
    "enough for the update of a later turn to matter to an earlier one within an iteration. With one turn it is GSPO "
    "with the same clip and normalisation.",
    source="Hu et al., SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees",
)

PPO = Facts(
    title="PPO",
    idea="A critic learns what to expect before each token, and a token is reinforced if things turned out better than "
    "that. The ratio of each token is clipped, so that several steps can be taken on the same trajectories.",
    formula="""\
policy:  mean over tokens  min( r_t A_t, clip(r_t, 1 - low, 1 + high) A_t )
critic:  mean over tokens  1/2 max( (V_t - G_t)^2, (V_t' - G_t)^2 )

A_t = sum_l (gamma lambda)^l delta_{t+l}
delta_t = R_t + gamma V_k,t+1 - V_k,t
G_t = A_t + V_k,t,   V_t' = clip(V_t, V_k,t - c, V_k,t + c)
r_t = pi_theta(token) / pi_theta_k(token)""",
    advantage="GAE",
    advantage_here="over the action tokens of all turns, with the critic's values; standardized over all tokens of the "
    "batch",
    update="PPU",
    update_here="one clipped ratio for each token, every token counting the same; squared errors for the critic",
    level="token",
    single_turn="yes",
    multi_turn="yes",
    proved="The bias of GAE is at most (1 + gamma - 2 gamma lambda) / (1 - gamma lambda) times the critic's largest "
    "error (Theorem 3). With a perfect critic J never falls and converges to its optimum (Theorem 6).",
    conditions="A critic without error, bounded rewards, exact expectations, the true maximiser of the clipped "
    "objective; and no action may lose all its probability, which the paper does not say. No trained critic is "
    "perfect, and standardizing subtracts a mean, which a clipped maximiser notices (claim 12).",
    verdicts={3: "holds", 6: "counterexample", 12: "counterexample"},
    measured="The bound held everywhere, and the worst critic errors come as close to it as one likes. With exact "
    "advantages the clipped maximiser never lowered J, yet it ended up to 0.018 short of the optimum, and at 0.3 "
    "instead of 1 on a chain of two turns whose good end looked bad at first. With gradient steps on a shared network "
    "J fell once in 100 iterations.",
    cost=Cost(
        forward="2 + E + K",
        critic_forward="1 + E",
        critic_backward="E",
        critic_steps="E * B",
        by_default=("3 + 2", "1 + 1"),
    ),
    use="Long episodes whose tokens deserve different credit, with memory for a second model and enough episodes to "
    "teach it. It also learns from groups whose rewards are all equal, in which there is nothing to compare. "
    "Watch `explained_variance`: near 0 the critic is no help yet.",
    source="Schulman et al. 2017, Proximal Policy Optimization Algorithms (arXiv:1707.06347); GAE: Schulman et al. "
    "2016 (arXiv:1506.02438)",
)

GRPO = Facts(
    title="GRPO",
    idea="Attempts at the same task are compared with one another: all tokens of one that did better than the group's "
    "mean are reinforced, those of a worse one are discouraged. The ratio of each token is clipped as in PPO, and no "
    "critic is needed.",
    formula="""\
J = 1/G sum_i  1/|o_i| sum_t  ( C_it - beta K_it )
C_it = min( r_it A_i, clip(r_it, 1 - low, 1 + high) A_i )
K_it = q - log q - 1,   q = pi_ref(token) / pi_theta(token)

A_i = (R_i - mean R) / std R,   r_it = pi_theta(token) / pi_theta_k(token)""",
    advantage="GRAE",
    advantage_here="reward minus the mean of the group, divided by the deviation of the group; the same for all tokens",
    update="PPU",
    update_here="one clipped ratio for each token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="no",
    multi_turn="no",
    proved="A group-relative advantage is off by V(s_t) - V(s_0), yet its unclipped gradient is right without "
    "discounting (Theorem 4). Under a clip that bias voids the guarantee, and there are policies from which J falls "
    "(Theorem 7). Dividing by the group's deviation voids it as well (Theorem 9).",
    conditions="None: nothing is guaranteed, not even for one turn, because the states are those within a response.",
    verdicts={
        4: "counterexample",
        7: "holds under a condition",
        9: "holds under a condition",
        10: "holds under a condition",
    },
    measured="J does fall from some policies: in 2 of 40 updates with one distribution per turn, in 4 of 40 with a "
    "network and large steps (in 2 with true advantages), never with separate parameters. The paper's own example is "
    "no such case. With the own reward in the mean the expected gradient is (G-1)/G of the right one. Dividing by the "
    "group's deviation turned the gradient of a network by up to 78 degrees.",
    cost=Cost(forward="2 + E + K", by_default=("4", "1")),
    use="Single responses with a reward that can be checked, or as what everybody else compares with. If long failures "
    "grow longer, or tasks differ much in how their rewards spread, take the options of Dr. GRPO: `length_term` and "
    "`deviation_term` off.",
    source="Shao et al. 2024, DeepSeekMath (arXiv:2402.03300); Dr. GRPO: Liu et al. 2025 (arXiv:2503.20783)",
)

GSPO = Facts(
    title="GSPO",
    idea="As the reward is of a whole response, so are the ratio and the clip: one for all its tokens, the geometric "
    "mean of theirs. Such a ratio moves little, so the clip is about a thousand times narrower than PPO's.",
    formula="""\
J = 1/G sum_i  min( s_i A_i, clip(s_i, 1 - low, 1 + high) A_i )

s_i = ( pi_theta(o_i) / pi_theta_k(o_i) )^(1/|o_i|)
A_i = (R_i - mean R) / std R""",
    advantage="GRAE",
    advantage_here="reward minus the mean of the group, divided by the deviation of the group",
    update="PPU",
    update_here="one clipped, length-normalised ratio for each trajectory, or for each turn",
    level="sequence",
    single_turn="yes",
    multi_turn="no",
    proved="With one turn and whole responses as actions, clipped updates on group-relative advantages never lower J "
    "and converge to its optimum (Theorem 8). Dividing by the group's deviation voids that unless the deviation is 1 "
    "(Theorem 9). With several turns Theorem 7 applies, as for GRPO.",
    conditions="One turn, product ratios, the true maximiser, and no division by the group's deviation. The default "
    'normalize = "group" is GSPO\'s own and does divide; "none" and "batch" do not. Length-normalised ratios are in '
    "no proof.",
    verdicts={
        7: "holds under a condition",
        8: "holds",
        9: "holds under a condition",
        10: "holds under a condition",
    },
    measured="With one turn and no division the clipped maximiser solved every problem without a step back. With "
    "division J fell in 29% of the iterations where all tasks shared one distribution, and never where each had its "
    "own: tasks with little at stake weigh as much as those with much.",
    cost=Cost(forward="2 + 2 * E - 1/B + K", by_default=("3.75", "1")),
    use="Long responses, where single token ratios are noisy, and models whose token probabilities jump from one "
    "version to the next, such as mixtures of experts. Watch `clip_fraction`: it is meant to be far above PPO's, and 0 "
    "means that the clip does nothing.",
    source="Zheng et al. 2025, Group Sequence Policy Optimization (arXiv:2507.18071)",
)

RLOO = Facts(
    title="RLOO",
    idea="Plain REINFORCE on whole trajectories: each is reinforced by how much better it did than the mean of the "
    "other attempts at its task. As the own reward is not in that mean, the gradient is right on average, not only in "
    "direction.",
    formula="""\
gradient = 1/G sum_i  A_i  grad log pi_theta(o_i)
A_i = R_i - mean of R_j over j != i

that is, at theta_k, of  J = 1/G sum_i  A_i pi_theta(o_i) / pi_theta_k(o_i)""",
    advantage="GRAE",
    advantage_here="reward minus the mean of the others in the group; nothing is divided",
    update="REINFORCE",
    update_here="the product ratio of a whole trajectory, not clipped",
    level="sequence",
    single_turn="yes",
    multi_turn="no",
    proved="Without discounting the expected update is the gradient of J; J never falls and converges (Theorem 5). "
    "That the limit is the optimum is said in the paper's abstract, not in the theorem.",
    conditions="No discounting, bounded rewards, a finite horizon, new trajectories for every step: further steps on "
    "the same ones have a bias of the order of the step. The proof takes exact policy iteration for gradient steps. "
    "The table's no for several turns is about discounting; here an episode has one reward at its end and nothing is "
    "discounted, so that Theorem 5 speaks of several turns as well.",
    verdicts={4: "counterexample", 5: "holds under a condition"},
    measured="Leave-one-out gradients were exact; what fails in claim 4 is the mean with the own reward in it, and the "
    "formula of the bias where rewards come on the way. With exact gradients J never fell for tables. It did with a "
    "network at a large learning rate (in 14 of 200 iterations) and with sampled groups (in 13 of 200, by at most "
    "0.0007). Whether the limit is the optimum could not be decided.",
    cost=Cost(forward="2 + 2 * E - 1/B + K", by_default=("3", "1")),
    use="The fewest moving parts: no clip, no normalisation, one step an iteration. Good as a yardstick, and wherever "
    "small steps are cheap; nothing but the learning rate holds an update back.",
    source="Ahmadian et al. 2024, Back to Basics: Revisiting REINFORCE Style Optimization (arXiv:2402.14740), after "
    "Kool et al. 2019",
)

REINFORCE_PP = Facts(
    title="REINFORCE++ with baseline",
    idea="The baseline is the mean of the group, but the scale is one for all: advantages are standardized over every "
    "token of the batch instead of group by group. Then the ratio of each token is clipped as in PPO.",
    formula="""\
J = 1/N sum_i  1/|o_i| sum_t  ( C_it - beta K_it )
C_it = min( r_it A_it, clip(r_it, 1 - low, 1 + high) A_it )
K_it = q - log q - 1,   q = pi_ref(token) / pi_theta(token)

A_it = (B_it - mean B) / std B   over all tokens of the batch
B_it = R_i - mean R of group - beta_r sum_{u >= t} log(pi_theta_k / pi_ref)""",
    advantage="GRAE",
    advantage_here="reward minus the mean of the group, standardized over all tokens of the batch",
    update="PPU",
    update_here="one clipped ratio for each token, averaged over the tokens of a trajectory",
    level="token",
    single_turn="no",
    multi_turn="no",
    proved="As for GRPO: the advantage is off by V(s_t) - V(s_0) (Theorem 4), and under a clip that voids the "
    "guarantee (Theorem 7). Dividing by one deviation for the whole batch does no harm (appendix).",
    conditions="None: nothing is guaranteed, not even for one turn, because the states are those within a response.",
    verdicts={
        4: "counterexample",
        7: "holds under a condition",
        10: "holds under a condition",
        12: "counterexample",
    },
    measured="Dividing by the batch's deviation changed no maximiser and no direction of a gradient. Subtracting a "
    "constant is not as harmless as the paper says: 0.2 less changed the clipped maximiser in 9 of 20 problems. The "
    "mean over tokens is not 0 where long trajectories do better or worse, so groups whose rewards are all equal get "
    "a small push too.",
    cost=Cost(forward="2 + E + K", by_default=("4", "1")),
    use="Tasks whose rewards spread very differently, with token-level clipping: one deviation for all keeps them in "
    "proportion, where GRPO gives each group the same weight.",
    source="Hu et al. 2025, REINFORCE++ (arXiv:2501.03262)",
)

FACTS: Mapping[str, Facts] = {
    "seeupo": SEEUPO,
    "ppo": PPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "rloo": RLOO,
    "reinforce_pp": REINFORCE_PP,
}
"""By the name in the registry. An algorithm may be registered without."""


def comparison() -> list[str]:
    """The table of docs/algorithms/README.md, in Markdown."""
    lines = [
        "| algorithm | advantage | update | level | single-turn | multi-turn | forward passes | backward passes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, facts in FACTS.items():
        cells = [f"[`{name}`]({name}.md)", facts.advantage, facts.update, facts.level]
        cells += [facts.single_turn, facts.multi_turn, *facts.cost.by_default]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
