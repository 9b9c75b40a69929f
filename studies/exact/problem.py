"""Small multi-turn decision problems, enumerated as the list of all their paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """All paths through a multi-turn decision problem: P paths, T turns, L tokens per turn, vocabulary size V.

    A *node* is a decision point of the policy. It identifies what the policy observes: the history in a contextual
    bandit, the state and the time in an MDP.

    Attributes:
        nodes: Node at which each token is chosen [P, T, L]; -1 where the path has no such token.
        tokens: Token chosen there [P, T, L]; -1 where the path has no such token.
        chance: Probability of the initial state and the transitions, without the policy [P].
        rewards: Reward after each turn [P, T].
        contexts: Initial state s_0 [P].
        num_tokens: Vocabulary size V.
    """

    nodes: Tensor
    tokens: Tensor
    chance: Tensor
    rewards: Tensor
    contexts: Tensor
    num_tokens: int

    @property
    def num_nodes(self) -> int:
        return int(self.nodes.max()) + 1

    @property
    def num_turns(self) -> int:
        return self.nodes.shape[1]

    @property
    def returns(self) -> Tensor:
        """Return the total reward of each path [P]."""
        return self.rewards.sum(1)

    @property
    def live(self) -> Tensor:
        """Return a mask [P, T], True where the path has that turn."""
        return self.nodes[:, :, 0] >= 0

    def log_prob_of_turns(self, log_policy: Tensor) -> Tensor:
        """Return log pi(a^t | history) [P, T] under log pi [nodes, V]; 0 where a path has no such turn."""
        token_logprobs = log_policy[self.nodes.clamp(min=0), self.tokens.clamp(min=0)]
        return torch.where(self.nodes >= 0, token_logprobs, 0.0).sum(2)

    def path_probs(self, log_policy: Tensor) -> Tensor:
        """Return the probability of each path [P]."""
        return self.chance * self.log_prob_of_turns(log_policy).sum(1).exp()

    def expected_return(self, log_policy: Tensor) -> Tensor:
        """Return J(pi), a differentiable scalar."""
        return self.path_probs(log_policy) @ self.returns

    def value_at_nodes(self, log_policy: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the expected target given a node, V [nodes], and given a node and a token, Q [nodes, V].

        `targets` [P, T] is the value of a path as seen from each turn, by default its total return. Unreachable nodes
        and tokens get 0.
        """
        probs = self.path_probs(log_policy)
        targets = self.returns[:, None].expand(-1, self.num_turns) if targets is None else targets
        weights = probs[:, None, None].expand_as(self.nodes)
        live = self.nodes >= 0
        at = self.nodes[live], self.tokens[live]
        empty = torch.zeros(self.num_nodes, self.num_tokens, dtype=probs.dtype)
        reached = empty.index_put(at, weights[live], accumulate=True)
        earned = empty.index_put(at, (weights * targets[:, :, None])[live], accumulate=True)

        def divide(total: Tensor, weight: Tensor) -> Tensor:
            return torch.where(weight > 0, total / weight.clamp(min=1e-300), 0.0)

        return divide(earned.sum(1), reached.sum(1)), divide(earned, reached)

    def discounted_to_go(self, gamma: float) -> Tensor:
        """Return the discounted reward from each turn on [P, T]."""
        to_go = self.rewards.clone()
        for turn in reversed(range(self.num_turns - 1)):
            to_go[:, turn] += gamma * to_go[:, turn + 1]
        return to_go

    def reach(self, log_policy: Tensor) -> Tensor:
        """Return the probability that a path visits each node [nodes]."""
        live = self.nodes >= 0
        probs = self.path_probs(log_policy)[:, None, None].expand_as(self.nodes)
        return torch.zeros(self.num_nodes, dtype=probs.dtype).index_add(0, self.nodes[live], probs[live])

    def best_return(self, floor: float = 0.0) -> float:
        """Return J*, by backward induction, among policies that give every token a probability of at least `floor`.

        A token that lies on no path cannot be chosen.
        """
        exists = torch.zeros(self.num_nodes, self.num_tokens, dtype=torch.bool)
        exists[self.nodes[self.nodes >= 0], self.tokens[self.nodes >= 0]] = True
        log_policy = torch.full((self.num_nodes, self.num_tokens), 1 / self.num_tokens, dtype=self.chance.dtype).log()
        for node in self.nodes.flatten(1).T.flip(0):
            here = node[node >= 0].unique()
            if len(here):
                _, value = self.value_at_nodes(log_policy)
                best = value.masked_fill(~exists, float("-inf"))[here].argmax(1)
                probs = floor * exists[here].to(log_policy)
                probs[range(len(here)), best] += 1 - probs.sum(1)
                log_policy[here] = probs.log()
        return float(self.expected_return(log_policy))


def bandit(rewards: Tensor, *, tokens_per_turn: int = 1) -> Problem:
    """Return a multi-turn contextual bandit with rewards [contexts, A, ..., A], one axis per turn after the first.

    Contexts are equally likely. An action consists of `tokens_per_turn` tokens, so A must be V ** tokens_per_turn.
    """
    contexts, num_actions, num_turns = rewards.shape[0], rewards.shape[1], rewards.dim() - 1
    if set(rewards.shape[1:]) != {num_actions}:
        raise ValueError(f"rewards has shape {tuple(rewards.shape)}; every turn must have the same number of actions")
    num_tokens = round(num_actions ** (1 / tokens_per_turn))
    if num_tokens**tokens_per_turn != num_actions:
        raise ValueError(f"{num_actions} actions cannot be written with {tokens_per_turn} tokens each")
    index: dict[tuple[int, ...], int] = {}
    nodes, tokens, origin = [], [], []
    for context in range(contexts):
        for path in product(range(num_tokens), repeat=num_turns * tokens_per_turn):
            nodes.append([index.setdefault((context, *path[:time]), len(index)) for time in range(len(path))])
            tokens.append(list(path))
            origin.append(context)
    action_tokens = torch.tensor(tokens).view(-1, num_turns, tokens_per_turn)
    powers = num_tokens ** torch.arange(tokens_per_turn - 1, -1, -1)
    actions = (action_tokens * powers).sum(2)
    per_turn = torch.zeros(len(action_tokens), num_turns, dtype=rewards.dtype)
    per_turn[:, -1] = rewards[(torch.tensor(origin), *actions.T)]
    return Problem(
        nodes=torch.tensor(nodes).view_as(action_tokens),
        tokens=action_tokens,
        chance=torch.full((len(action_tokens),), 1 / contexts, dtype=rewards.dtype),
        rewards=per_turn,
        contexts=torch.tensor(origin),
        num_tokens=num_tokens,
    )


def mdp(start: Tensor, transitions: Tensor, rewards: Tensor, *, horizon: int) -> Problem:
    """Return a finite-horizon MDP with start [S], transitions [S, A, S] and rewards [S, A]; nodes are (time, state)."""
    num_states, num_actions = rewards.shape
    Path = tuple[list[int], list[int], float, list[float], int, int]  # nodes, tokens, chance, rewards, s_0, state
    paths: list[Path] = [([], [], float(start[s]), [], s, s) for s in range(num_states) if start[s] > 0]
    any_state = torch.eye(num_states)[0]
    for time in range(horizon):
        paths = [
            (
                [*nodes, time * num_states + state],
                [*tokens, action],
                chance * float(after[next_state]),
                [*earned, float(rewards[state, action])],
                origin,
                next_state,
            )
            for nodes, tokens, chance, earned, origin, state in paths
            for action in range(num_actions)
            # The state after the last action does not matter.
            for after in [transitions[state, action] if time + 1 < horizon else any_state]
            for next_state in after.nonzero().flatten().tolist()
        ]
    columns = list(zip(*paths, strict=True))
    return Problem(
        nodes=torch.tensor(columns[0])[:, :, None],
        tokens=torch.tensor(columns[1])[:, :, None],
        chance=torch.tensor(columns[2], dtype=rewards.dtype),
        rewards=torch.tensor(columns[3], dtype=rewards.dtype),
        contexts=torch.tensor(columns[4]),
        num_tokens=num_actions,
    )


def tree(paths: Sequence[tuple[int, Sequence[int], float]], *, num_tokens: int) -> Problem:
    """Return a bandit of ragged length from paths (context, tokens by turn, reward); contexts are equally likely."""
    index: dict[tuple[int, ...], int] = {}
    longest = max(len(tokens) for _, tokens, _ in paths)
    nodes, action_tokens = torch.full((2, len(paths), longest, 1), -1).unbind(0)
    rewards = torch.zeros(len(paths), longest, dtype=torch.float64)
    for row, (context, tokens, reward) in enumerate(paths):
        for turn, token in enumerate(tokens):
            nodes[row, turn] = index.setdefault((context, *tokens[:turn]), len(index))
            action_tokens[row, turn] = token
        rewards[row, len(tokens) - 1] = reward
    contexts = torch.tensor([context for context, _, _ in paths])
    return Problem(
        nodes=nodes,
        tokens=action_tokens,
        chance=torch.full((len(paths),), 1 / len(contexts.unique()), dtype=torch.float64),
        rewards=rewards,
        contexts=contexts,
        num_tokens=num_tokens,
    )
