from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from models.examples import random_turns, small_model, thought_stripped_trajectory
from models.test_logprobs import gradient, tree_by_turn
from seeupo.models.packing import tree
from seeupo.models.packing import tree_attention as module
from seeupo.models.packing.tree import pack_batches
from seeupo.models.packing.tree_attention import BlockedAttention, FlexAttention, TreeAttention

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture
def flex_on_cpu(monkeypatch):
    """Use FlexAttention on the CPU, where PyTorch computes its gradients correctly, but refuses to by default."""
    monkeypatch.setattr(torch_flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(module, "flex_is_faster", lambda queries: True)


@pytest.fixture
def batches(monkeypatch):
    """Batches of several rows, with branches, chains, stripped thoughts and padding."""
    monkeypatch.setattr(tree, "SMALL_TREE", 8)
    turns = random_turns(2, count=40) + thought_stripped_trajectory()
    batches = pack_batches(turns, row_tokens=24, batch_tokens=96)
    assert any(len(batch.input_ids) > 1 and len(batch.blocks[-1]) > 1 for batch in batches)
    return batches


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_flex_attention_equals_blocks_in_values_and_gradients(dtype, batches, flex_on_cpu):
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        rows, length = batch.input_ids.shape
        queries, keys, values = (
            torch.randn(rows, heads, length, 8, generator=generator, dtype=dtype, requires_grad=True)
            for heads in (4, 2, 2)
        )
        weights = torch.randn(rows, length, 4, 8, generator=generator, dtype=dtype)
        for row, blocks in enumerate(batch.blocks):
            weights[row, blocks[-1].end :] = 0  # padding has no meaning
        results = []
        for implementation in (BlockedAttention, FlexAttention):
            attended = implementation(batch, dtype, queries.device)(queries, keys, values, 0.3)
            weighted = attended * weights
            results.append((weighted, *torch.autograd.grad(weighted.sum(), (queries, keys, values))))
        for blocked, flex in zip(*results, strict=True):
            torch.testing.assert_close(flex, blocked, rtol=0, atol=TOLERANCE[dtype])


def test_the_backward_pass_of_blocks_makes_no_tensor_of_the_whole_batch_per_block(batches):
    batch = max(batches, key=lambda batch: len(batch.blocks[0]))
    rows, length = batch.input_ids.shape
    tensors = [torch.randn(rows, heads, length, 8, requires_grad=True) for heads in (4, 2, 2)]
    attended = BlockedAttention(batch, torch.float32, tensors[0].device)(*tensors, 0.3)
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


def test_models_have_the_same_log_probs_and_gradients_with_flex_attention(request):
    model, turns = small_model("qwen3"), random_turns(1)
    blocked, _, _ = tree_by_turn(model, turns)
    blocked_gradient = gradient(model, blocked.sum())
    request.getfixturevalue("flex_on_cpu")
    flex, _, _ = tree_by_turn(model, turns)
    torch.testing.assert_close(flex, blocked, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient(model, flex.sum()), blocked_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("is_cuda", "dtype", "length", "width", "expected"),
    [
        (False, torch.float32, 1000, 64, False),
        (True, torch.float32, 1000, 64, True),
        (True, torch.bfloat16, 129, 128, True),
        (True, torch.bfloat16, 128, 128, False),
        (True, torch.float64, 1000, 64, False),
        (True, torch.bfloat16, 1000, 8, False),
    ],
)
def test_flex_attention_is_for_gpus(is_cuda, dtype, length, width, expected):
    queries = SimpleNamespace(is_cuda=is_cuda, dtype=dtype, shape=(1, 4, length, width))
    assert module.flex_is_faster(queries) is expected


def test_queries_and_keys_are_rounded_to_the_type_of_the_values(batches):
    batch = batches[0]
    rows, length = batch.input_ids.shape
    queries, keys, values = (torch.randn(rows, heads, length, 8) for heads in (4, 2, 2))
    rounded = [tensor.bfloat16() for tensor in (queries, keys, values)]
    actual = TreeAttention(batch)(queries, keys, rounded[2], 0.3)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, BlockedAttention(batch, torch.bfloat16, queries.device)(*rounded, 0.3))
