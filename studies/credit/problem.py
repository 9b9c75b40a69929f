"""Small multi-turn decision problems in which the true advantage of every turn is known by backward induction.

Dimensions of tensors: C groups (independent copies of a problem, each with a policy of its own), T turns, S states,
A actions. An action has two tokens of a vocabulary of two, so that A = 4 and token-level credit differs from turn-level
credit. Each turn and state has three nodes: one for the first token, and one for the second token after each first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["chain", "decisive", "deceptive"]
KINDS: tuple[Kind, ...] = ("chain", "decisive", "deceptive")
ON, OFF, SAFE = range(3)
STATES, ACTIONS, NODES = 3, 4, 3
RIGHT = 3
"""The right action: token 1 twice."""
SUCCESS, LATER_SUCCESS, SAFE_REWARD, GO = 0.4, 0.2, 0.3, 0.5
"""Success of the first policy; in deceptive problems success of the later turns, the safe reward, and P(go)."""
F64 = torch.float64


@dataclass(frozen=True)
class CreditProblem:
    """A finite-horizon problem that starts in state ON.

    Attributes:
        transitions: Probability of the next state [T, S, A, S].
        rewards: Step reward of a turn [T, S, A], earned with the action.
        outcomes: Reward of the state after the last turn [S].
        start: Probabilities pi_k(action) of the first policy [T, S, A].
    """

    transitions: Tensor
    rewards: Tensor
    outcomes: Tensor
    start: Tensor

    @property
    def num_turns(self) -> int:
        return len(self.rewards)

    @property
    def num_nodes(self) -> int:
        return self.num_turns * STATES * NODES

    @property
    def step_rewards(self) -> bool:
        return bool((self.rewards != 0).any())

    def action_log_probs(self, log_policy: Tensor) -> Tensor:
        """Return log pi(action) [C, T, S, A] for log pi(token) [C * nodes, 2]."""
        nodes = log_policy.view(-1, self.num_turns, STATES, NODES, 2)
        return (nodes[..., 0, :, None] + nodes[..., 1:, :]).flatten(-2)

    def token_log_probs(self) -> Tensor:
        """Return log pi_k(token) [nodes, 2] of the first policy."""
        pairs = self.start.view(self.num_turns, STATES, 2, 2)
        first = pairs.sum(3, keepdim=True)
        nodes = torch.cat([first.transpose(2, 3), pairs / first], dim=2)
        return nodes.log().view(-1, 2)

    def values(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return V [C, T, S] and Q [C, T, S, A], the expected reward from a turn on, for pi(action) [C, T, S, A]."""
        following = self.outcomes.expand(len(probs), STATES)
        V, Q = [], []
        for t in reversed(range(self.num_turns)):
            Q.append(self.rewards[t] + torch.einsum("saz,cz->csa", self.transitions[t], following))
            following = (probs[:, t] * Q[-1]).sum(2)
            V.append(following)
        return torch.stack(V[::-1], 1), torch.stack(Q[::-1], 1)

    def advantages(self, probs: Tensor, later: Tensor) -> Tensor:
        """Return the true advantage [C, T, S, A] of each action over pi, if the later turns follow `later`."""
        _, Q = self.values(later)
        return Q - (probs * Q).sum(3, keepdim=True)

    def expected_return(self, probs: Tensor) -> Tensor:
        """Return J [C]."""
        return self.values(probs)[0][:, 0, ON]

    def reach(self, probs: Tensor) -> Tensor:
        """Return the probability of each state at each turn [C, T, S]."""
        state = torch.eye(STATES, dtype=F64)[ON].expand(len(probs), -1)
        reached = []
        for t in range(self.num_turns):
            reached.append(state)
            state = torch.einsum("cs,csa,saz->cz", state, probs[:, t], self.transitions[t])
        return torch.stack(reached, 1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the KL(old || new) [C] of whole trajectories, for log pi(action) [C, T, S, A]."""
        per_state = (old.exp() * (old - new)).sum(3)
        return (self.reach(old.exp()) * per_state).sum((1, 2))

    def return_deviation(self) -> float:
        """Return the standard deviation of the trajectories' rewards under the first policy."""
        probs = self.start[None]
        mean, square = self.outcomes[None], self.outcomes[None] ** 2
        for t in reversed(range(self.num_turns)):
            later, later_square = (
                torch.einsum("saz,cz->csa", self.transitions[t], moment) for moment in (mean, square)
            )
            reward = self.rewards[t]
            mean = (probs[:, t] * (reward + later)).sum(2)
            square = (probs[:, t] * (reward**2 + 2 * reward * later + later_square)).sum(2)
        return float((square - mean**2)[0, ON].clamp(min=0).sqrt())


def make_problem(
    kind: Kind, *, turns: int, decisive: int = 0, noise: float = 0.0, step_reward: float = 0.0
) -> CreditProblem:
    """Return a problem of T turns.

    In a "chain" every turn must be right to earn 1 at the end; in a "decisive" problem only turn `decisive`, counted
    from 0, and nothing depends on the others. In a "deceptive" problem the right action in the first turn leads to a
    chain, and any other to a safe reward, which is more than the chain is worth under the first policy.

    Args:
        noise: Probability that chance turns a success of the turns that matter into a failure, or about the reverse;
            spread evenly over these turns.
        step_reward: Total step reward for right actions in the turns that matter, beside the outcome.
    """
    first = 1 if kind == "deceptive" else 0
    critical = [decisive] if kind == "decisive" else list(range(first, turns))
    flip = 1 - (1 - noise) ** (1 / len(critical))
    success = LATER_SUCCESS if kind == "deceptive" else SUCCESS
    right = (success ** (1 / len(critical)) - flip) / (1 - 2 * flip)
    transitions = torch.eye(STATES, dtype=F64)[None, :, None].repeat(turns, 1, ACTIONS, 1)
    rewards = torch.zeros(turns, STATES, ACTIONS, dtype=F64)
    start = torch.full((turns, STATES, ACTIONS), 1 / ACTIONS, dtype=F64)
    for t in critical:
        transitions[t, ON] = torch.tensor([flip, 1 - flip, 0], dtype=F64)
        transitions[t, ON, RIGHT] = torch.tensor([1 - flip, flip, 0], dtype=F64)
        rewards[t, ON, RIGHT] = step_reward / len(critical)
        start[t, ON] = _mostly_right(right)
    if kind == "deceptive":
        transitions[0, ON] = torch.eye(STATES, dtype=F64)[SAFE]
        transitions[0, ON, RIGHT] = torch.eye(STATES, dtype=F64)[ON]
        start[0, ON] = _mostly_right(GO)
    outcomes = torch.tensor([1, 0, SAFE_REWARD if kind == "deceptive" else 0], dtype=F64)
    return CreditProblem(transitions, rewards, outcomes, start)


def _mostly_right(right: float) -> Tensor:
    """Return probabilities of the actions whose tokens are independent and equally likely to be 1."""
    token = torch.tensor([1 - right**0.5, right**0.5], dtype=F64)
    return torch.outer(token, token).flatten()
