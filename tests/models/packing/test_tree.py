from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.examples import random_turns, thought_stripped_trajectory
from seeupo.models.packing import tree
from seeupo.models.packing.tree import pack_batches, pack_rows
from seeupo.types import Turn

few_tokens = st.lists(st.integers(0, 2), max_size=6)
turns_of_few_tokens = st.lists(st.tuples(few_tokens.filter(bool), few_tokens), min_size=1, max_size=12).map(
    lambda pairs: [Turn(str(n), 0, tuple(prompt), tuple(action)) for n, (prompt, action) in enumerate(pairs)]
)


def ancestors(row, node: int) -> list[int]:
    """Return the tokens from the root to the node, including it, according to the row's `ends`."""
    return [other for other in range(node + 1) if node < row.ends[other]]


@settings(deadline=None)
@given(turns_of_few_tokens, st.integers(1, 40))
def test_rows_contain_every_turn(turns, row_tokens):
    rows = pack_rows(turns, row_tokens=row_tokens)
    assert sorted(member for row in rows for member in row.members) == list(range(len(turns)))
    for row in rows:
        assert len(row.tokens) <= row_tokens or len(row.members) == 1
        for member, predictors in zip(row.members, row.predictors, strict=True):
            turn = turns[member]
            assert len(predictors) == len(turn.action_ids)
            for place, node in enumerate(predictors):
                path = ancestors(row, int(node))
                seen = tuple(int(row.tokens[other]) for other in path)
                assert seen == turn.prompt_ids + turn.action_ids[:place]
                assert [int(row.positions[other]) for other in path] == list(range(len(path)))


@settings(deadline=None)
@given(turns_of_few_tokens)
def test_a_row_stores_each_distinct_prefix_once(turns):
    (row,) = pack_rows(turns, row_tokens=10_000)
    sequences = [turn.prompt_ids + turn.action_ids for turn in turns]
    prefixes = {sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)}
    assert len(row.tokens) == len(prefixes)


def test_turns_with_stripped_thoughts_share_the_rest():
    turns = thought_stripped_trajectory()
    (row,) = pack_rows(turns, row_tokens=10_000)
    # The last prompt has everything except thoughts, 8 + 3 * 7 tokens; each turn adds 6 private tokens.
    assert len(row.tokens) == 29 + 4 * 6


def test_batches_contain_every_turn():
    turns = random_turns(3, count=40)
    batches = pack_batches(turns, row_tokens=24, batch_tokens=64)
    assert len(batches) > 1
    assert sorted(member for batch in batches for member in batch.members) == list(range(len(turns)))
    for batch in batches:
        assert batch.input_ids.numel() <= 64 or len(batch.input_ids) == 1
        for row, member in enumerate(batch.members):
            assert batch.targets[row][batch.mask[row]].tolist() == list(turns[member].action_ids)


@settings(deadline=None)
@given(turns_of_few_tokens, st.sampled_from([1, 4, 96]))
def test_blocks_let_each_token_attend_to_its_ancestors_only(turns, small_tree):
    (row,) = pack_rows(turns, row_tokens=10_000)
    with patch.object(tree, "SMALL_TREE", small_tree):
        blocks = list(tree.blocks_of(row.ends, 0, len(row.ends)))
    assert [place for block in blocks for place in range(block.start, block.end)] == list(range(len(row.tokens)))
    for block in blocks:
        shared = [place for start, end in block.ancestors for place in range(start, end)]
        for node in range(block.start, block.end):
            in_block = [
                place
                for place in range(block.start, node + 1)
                if block.ends is None or node - block.start < block.ends[place - block.start]
            ]
            assert shared + in_block == ancestors(row, node)


def test_invalid_turns_and_row_lengths_are_refused():
    with pytest.raises(ValueError, match=r"turn \('a', 2\) has an empty prompt"):
        pack_rows([Turn("a", 2, (), (1,))], row_tokens=8)
    with pytest.raises(ValueError, match="row_tokens = 0"):
        pack_rows([Turn("a", 0, (1,), (1,))], row_tokens=0)
    assert pack_rows([], row_tokens=8) == []
