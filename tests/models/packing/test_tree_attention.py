import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.examples import random_turns, thought_stripped_trajectory
from seeupo.models.packing import tree
from seeupo.models.packing.tree import pack_batches
from seeupo.models.packing.tree_attention import TreeAttention


@pytest.fixture
def batches(monkeypatch):
    """Batches of several rows, with branches, chains, stripped thoughts and padding."""
    monkeypatch.setattr(tree, "SMALL_TREE", 8)
    turns = random_turns(2, count=40) + thought_stripped_trajectory()
    batches = pack_batches(turns, row_tokens=24, batch_tokens=96)
    assert any(len(batch.input_ids) > 1 and len(batch.blocks[-1]) > 1 for batch in batches)
    return batches


def test_the_backward_pass_of_blocks_makes_no_tensor_of_the_whole_batch_per_block(batches):
    batch = max(batches, key=lambda batch: len(batch.blocks[0]))
    rows, length = batch.input_ids.shape
    tensors = [torch.randn(rows, heads, length, 8, requires_grad=True) for heads in (4, 2, 2)]
    attended = TreeAttention(batch)(*tensors, 0.3)
    with Operations() as operations:
        attended.sum().backward()
    assert not operations.names & {"aten.slice_backward.default", "aten.select_backward.default"}
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in operations.names


class Operations(TorchDispatchMode):
    """The names of operations that are dispatched."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def test_queries_and_keys_are_rounded_to_the_type_of_the_values(batches):
    batch = batches[0]
    rows, length = batch.input_ids.shape
    queries, keys, values = (torch.randn(rows, heads, length, 8) for heads in (4, 2, 2))
    rounded = [tensor.bfloat16() for tensor in (queries, keys, values)]
    actual = TreeAttention(batch)(queries, keys, rounded[2], 0.3)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, TreeAttention(batch)(*rounded, 0.3))
