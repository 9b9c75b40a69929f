from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.examples import random_samples, thought_stripped_trajectory
from seeupo.models import tree
from seeupo.models.tree import pack_batches, pack_rows
from seeupo.types import Turn

few_tokens = st.lists(st.integers(0, 2), max_size=6)
samples_of_few_tokens = st.lists(st.tuples(few_tokens.filter(bool), few_tokens), min_size=1, max_size=12).map(
    lambda pairs: [Turn(str(n), 0, tuple(prompt), tuple(action)) for n, (prompt, action) in enumerate(pairs)]
)


def ancestors(row, node: int) -> list[int]:
    """The tokens from the root to the node, itself included, as the row's `ends` say."""
    return [other for other in range(node + 1) if node < row.ends[other]]


@settings(deadline=None)
@given(samples_of_few_tokens, st.integers(1, 40))
def test_every_sample_can_be_read_off_its_row(turns, row_tokens):
    rows = pack_rows(turns, row_tokens=row_tokens)
    assert sorted(member for row in rows for member in row.turns) == list(range(len(turns)))
    for row in rows:
        assert len(row.tokens) <= row_tokens or len(row.turns) == 1
        for member, predictors in zip(row.turns, row.predictors, strict=True):
            turn = turns[member]
            assert len(predictors) == len(turn.action_ids)
            for place, node in enumerate(predictors):
                path = ancestors(row, int(node))
                seen = tuple(int(row.tokens[other]) for other in path)
                assert seen == turn.prompt_ids + turn.action_ids[:place]
                assert [int(row.positions[other]) for other in path] == list(range(len(path)))


@settings(deadline=None)
@given(samples_of_few_tokens)
def test_one_row_holds_every_distinct_prefix_once(turns):
    (row,) = pack_rows(turns, row_tokens=10_000)
    sequences = [turn.prompt_ids + turn.action_ids for turn in turns]
    prefixes = {sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)}
    assert len(row.tokens) == len(prefixes)


def test_stripped_thoughts_share_what_is_left():
    turns = thought_stripped_trajectory()
    (row,) = pack_rows(turns, row_tokens=10_000)
    # The last prompt holds everything but the thoughts, 8 + 3 * 7 tokens; each turn hangs its own 6 tokens on it.
    assert len(row.tokens) == 29 + 4 * 6


def test_batches_hold_what_their_rows_hold():
    turns = random_samples(3, count=40)
    batches = pack_batches(turns, row_tokens=24, batch_tokens=64)
    assert len(batches) > 1
    assert sorted(member for batch in batches for member in batch.turns) == list(range(len(turns)))
    for batch in batches:
        assert batch.input_ids.numel() <= 64 or len(batch.input_ids) == 1
        for row, member in enumerate(batch.turns):
            assert batch.targets[row][batch.mask[row]].tolist() == list(turns[member].action_ids)


@settings(deadline=None)
@given(samples_of_few_tokens, st.sampled_from([1, 4, 96]))
def test_blocks_say_who_attends_to_whom(turns, small_tree):
    """Block by block, every token sees its ancestors and itself, and nothing else."""
    (row,) = pack_rows(turns, row_tokens=10_000)
    with patch.object(tree, "SMALL_TREE", small_tree):
        blocks = list(tree.blocks_of(row.ends, 0, len(row.ends)))
    assert [place for block in blocks for place in range(block.start, block.end)] == list(range(len(row.tokens)))
    for block in blocks:
        shared = [place for start, end in block.ancestors for place in range(start, end)]
        for node in range(block.start, block.end):
            own = [
                place
                for place in range(block.start, node + 1)
                if block.ends is None or node - block.start < block.ends[place - block.start]
            ]
            assert shared + own == ancestors(row, node)


def test_errors():
    with pytest.raises(ValueError, match=r"turn \('a', 2\) has a prompt without tokens"):
        pack_rows([Turn("a", 2, (), (1,))], row_tokens=8)
    with pytest.raises(ValueError, match="row_tokens is 0"):
        pack_rows([Turn("a", 0, (1,), (1,))], row_tokens=0)
    assert pack_rows([], row_tokens=8) == []
