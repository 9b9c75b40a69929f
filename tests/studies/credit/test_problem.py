"""The true advantages against enumeration and a case worked out by hand."""

from itertools import product

import pytest
import torch

from studies.credit.engine import GroupEngine, node_values, sample_groups
from studies.credit.problem import ACTIONS, KINDS, ON, RIGHT, STATES, CreditProblem, make_problem

F64 = torch.float64


def enumerated(problem: CreditProblem, probs: torch.Tensor):
    """Yield probability, states, actions and reward from each turn on, of every path."""
    for actions in product(range(ACTIONS), repeat=problem.num_turns):
        for after in product(range(STATES), repeat=problem.num_turns):
            states = (ON, *after[:-1])
            chance = 1.0
            for t, (state, action, following) in enumerate(zip(states, actions, after, strict=True)):
                chance *= float(probs[t, state, action] * problem.transitions[t, state, action, following])
            rewards = [float(problem.rewards[t, s, a]) for t, (s, a) in enumerate(zip(states, actions, strict=True))]
            if chance:
                end = float(problem.outcomes[after[-1]])
                yield chance, states, actions, [sum(rewards[t:]) + end for t in range(problem.num_turns)]


def random_policy(problem: CreditProblem, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(problem.start.shape, generator=generator, dtype=F64).softmax(2)


@pytest.mark.parametrize("kind", KINDS)
def test_true_advantages_equal_means_over_all_paths(kind):
    problem = make_problem(kind, turns=3, decisive=1, noise=0.2, step_reward=0.5)
    probs = random_policy(problem)
    advantages = problem.advantages(probs[None], probs[None])[0]
    paths = list(enumerated(problem, probs))
    assert sum(path[0] for path in paths) == pytest.approx(1)
    total = sum(chance * returns[0] for chance, _, _, returns in paths)
    assert float(problem.expected_return(probs[None])) == pytest.approx(total, abs=1e-12)
    second = sum(chance * returns[0] ** 2 for chance, _, _, returns in enumerated(problem, problem.start))
    first = sum(chance * returns[0] for chance, _, _, returns in enumerated(problem, problem.start))
    assert problem.return_deviation() == pytest.approx((second - first**2) ** 0.5, abs=1e-12)
    for t, state, action in product(range(3), range(STATES), range(ACTIONS)):
        here = [path for path in paths if path[1][t] == state]
        taken = [path for path in here if path[2][t] == action]
        if taken:
            value, action_value = (
                sum(path[0] * path[3][t] for path in some) / sum(path[0] for path in some) for some in (here, taken)
            )
            assert float(advantages[t, state, action]) == pytest.approx(action_value - value, abs=1e-12)
            reached = sum(path[0] for path in here)
            assert float(problem.reach(probs[None])[0, t, state]) == pytest.approx(reached, abs=1e-12)


def test_true_advantages_of_a_chain_by_hand():
    # Two turns, both right with probability q = sqrt(0.4): V = q^2 at first and q in the second turn.
    problem = make_problem("chain", turns=2)
    q = 0.4**0.5
    advantages = problem.advantages(problem.start[None], problem.start[None])[0]
    assert float(problem.expected_return(problem.start[None])) == pytest.approx(0.4)
    assert float(advantages[0, ON, RIGHT]) == pytest.approx(q - 0.4)
    assert float(advantages[0, ON, 0]) == pytest.approx(-0.4)
    assert float(advantages[1, ON, RIGHT]) == pytest.approx(1 - q)
    # If the second turn is always right after the update, the first is worth 1 if right.
    later = problem.start.clone()
    later[1, ON] = torch.eye(ACTIONS, dtype=F64)[RIGHT]
    assert float(problem.advantages(problem.start[None], later[None])[0, 0, ON, RIGHT]) == pytest.approx(1 - q)


def test_going_is_deceptive_until_the_later_turns_have_learned():
    problem = make_problem("deceptive", turns=4)
    now = problem.advantages(problem.start[None], problem.start[None])[0, 0, ON, RIGHT]
    assert float(now) == pytest.approx(0.2 - 0.25)
    later = problem.start.clone()
    later[1:, ON] = torch.eye(ACTIONS, dtype=F64)[RIGHT]
    assert float(problem.advantages(problem.start[None], later[None])[0, 0, ON, RIGHT]) > 0.3


def test_kl_is_that_of_whole_paths():
    problem = make_problem("chain", turns=2, noise=0.1)
    old, new = random_policy(problem, 0), random_policy(problem, 1)
    expected = 0.0
    for chance, states, actions, _ in enumerated(problem, old):
        for t, (state, action) in enumerate(zip(states, actions, strict=True)):
            expected += chance * float(old[t, state, action].log() - new[t, state, action].log())
    assert float(problem.kl(old[None].log(), new[None].log())) == pytest.approx(expected, abs=1e-12)


def test_tokens_and_values_of_tokens_match_the_actions():
    problem = make_problem("deceptive", turns=3)
    actions = problem.action_log_probs(problem.token_log_probs())[0]
    assert torch.allclose(actions.exp(), problem.start, atol=1e-12)
    # Before the second token of the first turn: go only after a first token of 1.
    values = node_values(problem).view(3, STATES, 3)[0, ON]
    second = 0.5**0.5
    assert values.tolist() == pytest.approx([0.25, 0.3, second * 0.2 + (1 - second) * 0.3])


def test_the_critic_has_the_stated_error():
    problem = make_problem("chain", turns=6)
    groups = sample_groups(problem, 200, 4, torch.Generator().manual_seed(0))
    engines = [
        GroupEngine(problem, 200, learning_rate=1.0, critic_error=error, generator=torch.Generator().manual_seed(1))
        for error in (0.0, 0.5)
    ]
    true, wrong = (torch.cat([row[:-1] for row in engine.values(groups.trajectories)]) for engine in engines)
    assert float((wrong - true).std()) == pytest.approx(0.5 * problem.return_deviation(), rel=0.1)
    assert all(row[-1] == 0 for row in engines[1].values(groups.trajectories))


def test_sampled_groups_hold_every_trajectory_once():
    problem = make_problem("chain", turns=3, noise=0.1)
    groups = sample_groups(problem, 5, 8, torch.Generator().manual_seed(0))
    sizes = torch.zeros(5, dtype=F64).index_add(0, groups.group, groups.count) / 3
    assert sizes.tolist() == [8.0] * 5
    many = sample_groups(problem, 1, 20000, torch.Generator().manual_seed(0))
    mean = sum(each.reward * each.multiplicity for each in many.trajectories) / 20000
    assert mean == pytest.approx(float(problem.expected_return(problem.start[None])), abs=0.02)
