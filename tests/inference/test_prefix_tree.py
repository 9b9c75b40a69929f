import torch
from hypothesis import given
from hypothesis import strategies as st

from seeupo.inference.prefix_tree import PrefixTree, Segment


def filled(segment: Segment) -> None:
    """Give new segments of a chain keys and values that tell their tokens."""
    for node in segment.chain():
        if not node.keys:
            node.keys = [torch.tensor(node.tokens)[None, :, None]]
            node.values = [-node.keys[0]]


def tokens_of(segment: Segment) -> tuple[int, ...]:
    return tuple(token for node in segment.chain() for token in node.tokens)


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12),
    computed=st.sets(st.integers(0, 11)),
)
def test_the_tree_holds_each_distinct_prefix_once_and_keeps_earlier_prompts(prompts, computed):
    tree = PrefixTree()
    ends = []
    for number, prompt in enumerate(prompts):
        ends.append(tree.insert(prompt))
        if number in computed:
            for end in ends:
                filled(end)
    assert tree.tokens == len({tuple(prompt[:n]) for prompt in prompts for n in range(1, len(prompt) + 1)})
    for prompt, end in zip(prompts, ends, strict=True):
        assert tokens_of(end) == tuple(prompt)
        assert end.end == len(prompt)
        assert end.starts([*prompt, 1])
        assert not prompt or not end.starts([*prompt[:-1], 3])
        for segment in end.chain():
            for keys, values in zip(segment.keys, segment.values, strict=True):
                assert keys[0, :, 0].tolist() == list(segment.tokens)
                assert torch.equal(keys, -values)
    # Prompts with common segments are neighbors when sorted.
    keys = sorted(end.order() for end in ends)
    for segment in {segment for end in ends for segment in end.chain()}:
        rows = [row for row, key in enumerate(keys) if segment.number in key[1:]]
        assert rows == list(range(rows[0], rows[-1] + 1))


def test_the_least_recently_used_end_of_a_prompt_is_removed_first():
    tree = PrefixTree()
    first, second, third = tree.insert((1, 2, 3)), tree.insert((1, 2, 4, 5)), tree.insert((6,))
    assert tree.least_used(set()) is first
    tree.insert((1, 2, 3))
    assert tree.least_used(set()) is second
    assert tree.least_used({second}) is third
    tree.remove(second)
    assert tree.tokens == 4
    tree.remove(third)
    tree.remove(first)
    assert tokens_of(tree.least_used(set())) == (1, 2)
