import math
from itertools import product

import pytest
import torch

from studies.exact.problem import bandit, mdp, tree

F64 = torch.float64


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_bandit_lists_every_joint_action_once():
    rewards = rand(2, 3, 3)
    problem = bandit(rewards)
    assert problem.nodes.shape == (18, 2, 1)
    assert problem.num_nodes == 2 * (1 + 3)
    uniform = torch.full((problem.num_nodes, 3), -math.log(3), dtype=F64)
    torch.testing.assert_close(problem.path_probs(uniform).sum(), torch.tensor(1.0, dtype=F64))
    torch.testing.assert_close(problem.expected_return(uniform), rewards.mean())
    assert problem.best_return() == pytest.approx(float(rewards.flatten(1).max(1).values.mean()))


def test_multi_token_actions_give_the_same_bandit():
    rewards = rand(1, 4, 4)
    whole, spelled = bandit(rewards), bandit(rewards, tokens_per_turn=2)
    assert spelled.num_tokens == 2
    assert spelled.nodes.shape == (16, 2, 2)
    assert spelled.best_return() == pytest.approx(whole.best_return())
    torch.testing.assert_close(spelled.returns, whole.returns)
    with pytest.raises(ValueError, match="3 actions cannot be written with 2 tokens"):
        bandit(rand(1, 3), tokens_per_turn=2)
    with pytest.raises(ValueError, match="every turn must have the same number of actions"):
        bandit(rand(1, 2, 3))


def brute_force_best(problem) -> float:
    """Try every deterministic policy."""
    best = -math.inf
    for choice in product(range(problem.num_tokens), repeat=problem.num_nodes):
        log_policy = torch.full((problem.num_nodes, problem.num_tokens), -math.inf, dtype=F64)
        log_policy[range(problem.num_nodes), choice] = 0.0
        best = max(best, float(problem.expected_return(log_policy)))
    return best


def test_best_return_of_an_mdp_and_of_a_ragged_tree():
    transitions = rand(2, 2, 2)
    chain = mdp(torch.tensor([0.3, 0.7]), transitions / transitions.sum(2, keepdim=True), rand(2, 2, seed=1), horizon=3)
    assert chain.best_return() == pytest.approx(brute_force_best(chain))
    ragged = tree([(0, (0,), 0.3), (0, (1, 0), 0.0), (0, (1, 1, 0), 0.9), (0, (1, 1, 1), 0.1)], num_tokens=2)
    assert ragged.best_return() == pytest.approx(0.9)
    costly = tree([(0, (0,), -1.0)], num_tokens=2)
    assert costly.best_return() == -1.0  # the other token lies on no path
    # A floor of 0.1 leaves 0.9 for the best token at each of the three nodes.
    assert ragged.best_return(0.1) == pytest.approx(0.1 * 0.3 + 0.9 * 0.9 * (0.9 * 0.9 + 0.1 * 0.1))
    assert costly.best_return(0.1) == -1.0
    assert ragged.live.tolist() == [[True, False, False], [True, True, False], [True] * 3, [True] * 3]


def test_values_of_an_mdp_satisfy_bellman():
    transitions = rand(3, 2, 3)
    transitions /= transitions.sum(2, keepdim=True)
    rewards, gamma, horizon = rand(3, 2, seed=1), 0.9, 3
    problem = mdp(torch.eye(3, dtype=F64)[0], transitions, rewards, horizon=horizon)
    log_policy = rand(problem.num_nodes, 2, seed=2).log_softmax(1)
    value, action_value = problem.value_at_nodes(log_policy, problem.discounted_to_go(gamma))
    policy = log_policy.exp()
    following = torch.zeros(3, dtype=F64)
    for time in reversed(range(horizon)):
        expected_q = rewards + gamma * transitions @ following
        following = (policy[3 * time : 3 * time + 3] * expected_q).sum(1)
        reached = problem.reach(log_policy)[3 * time : 3 * time + 3] > 0
        torch.testing.assert_close(action_value[3 * time : 3 * time + 3][reached], expected_q[reached])
        torch.testing.assert_close(value[3 * time : 3 * time + 3][reached], following[reached])
    assert problem.reach(log_policy)[:3].tolist() == pytest.approx([1.0, 0.0, 0.0])
