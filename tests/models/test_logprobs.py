import pytest
import torch

from models.examples import FAMILIES, random_turns, small_model, thought_stripped_trajectory
from seeupo.models import logprobs as module
from seeupo.models.logprobs import padded_logprobs, tree_logprobs
from seeupo.models.packing import tree
from seeupo.models.packing.tree import pack_batches
from seeupo.types import Turn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def tree_by_turn(model, turns, *, row_tokens=32, batch_tokens=64, **options):
    """Return tree-packed log-probs and entropies of all turns, in order, and the number of computed tokens."""
    logprobs, entropies, tokens = {}, {}, 0
    for batch in pack_batches(turns, row_tokens=row_tokens, batch_tokens=batch_tokens):
        actual = tree_logprobs(model, batch, entropies=True, **options)
        tokens += batch.input_ids.numel()
        for row, member in enumerate(batch.members):
            length = len(turns[member].action_ids)
            assert int(actual.mask[row].sum()) == length
            logprobs[member], entropies[member] = actual.logprobs[row, :length], actual.entropies[row, :length]
    order = range(len(turns))
    return torch.cat([logprobs[n] for n in order]), torch.cat([entropies[n] for n in order]), tokens


def padded_by_turn(model, turns, **options):
    actual = padded_logprobs(model, turns, entropies=True, **options)
    return actual.logprobs[actual.mask], actual.entropies[actual.mask]


def gradient(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


CASES = {
    "random 0": random_turns(0),
    "random 1": random_turns(1),
    "random 2": random_turns(2, count=40),
    "thoughts stripped": thought_stripped_trajectory(),
    "single": random_turns(4, count=1)[:1],
    "duplicates": [Turn(str(n), 0, (1, 2, 3), (4, 5)) for n in range(5)],
    "empty actions": [Turn("a", 0, (1, 2), ()), Turn("b", 0, (1, 2), (3,)), Turn("c", 0, (5,), ())],
}


@pytest.mark.parametrize("small_tree", [1, 96])
@pytest.mark.parametrize("turns", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_tree_packing_equals_padding_in_values_and_gradients(family, dtype, turns, small_tree, monkeypatch):
    """Trees are split where they branch (1), or are small enough for one masked block (96)."""
    monkeypatch.setattr(tree, "SMALL_TREE", small_tree)
    model = small_model(family, dtype)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(sum(len(s.action_ids) for s in turns), generator=generator, dtype=dtype)
    packed, packed_entropy, _ = tree_by_turn(model, turns, temperature=0.7)
    plain, plain_entropy = padded_by_turn(model, turns, temperature=0.7)
    assert packed.dtype == dtype
    torch.testing.assert_close(packed, plain, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(packed_entropy, plain_entropy, rtol=0, atol=TOLERANCE[dtype])
    by_tree = gradient(model, (weights * packed).sum() + packed_entropy.sum())
    by_padding = gradient(model, (weights * plain).sum() + plain_entropy.sum())
    assert float((by_tree - by_padding).norm() / by_padding.norm()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("trained", ["layers", "head", "all"])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_the_projection_has_the_same_values_and_gradients(dtype, temperature, trained, chunk, monkeypatch):
    """The slow twin computes the gradient by backpropagation through the logits of padded rows."""
    monkeypatch.setattr(module, "PROJECTION_BYTES", 4 * 40 * chunk)
    model, turns = small_model(dtype=dtype), random_turns(1)
    model.requires_grad_(trained != "head")
    model.base_model.embed_tokens.requires_grad_(trained == "all")
    model.lm_head.requires_grad_(trained != "layers")
    weights = torch.randn(sum(len(s.action_ids) for s in turns), generator=torch.Generator().manual_seed(0)).to(dtype)
    calls = []
    hook = model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    (batch,) = pack_batches(turns, row_tokens=1000, batch_tokens=1000)
    rows = tree_logprobs(model, batch, temperature=temperature)
    order = sorted(range(len(turns)), key=lambda row: batch.members[row])
    actual = torch.cat([rows.logprobs[row][rows.mask[row]] for row in order])
    assert not calls  # no logits that a backward pass would need again
    hook.remove()
    plain, _ = padded_by_turn(model, turns, temperature=temperature)
    torch.testing.assert_close(actual, plain, rtol=0, atol=TOLERANCE[dtype])
    results = []
    for logprobs in (plain, actual, actual):  # the second backward pass finds nothing stored
        model.zero_grad()
        (weights * logprobs).sum().backward(retain_graph=True)
        results.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    for result in results[1:]:
        assert float((result - results[0]).norm() / results[0].norm()) < TOLERANCE[dtype]


def test_the_gradient_of_a_confident_prediction_is_exact_in_bfloat16():
    """Its size is 1 - p: a difference of two products, rounded to bfloat16 each, would be wrong."""
    gradients = []
    weight = (0.1 * torch.randn(40, 16, generator=torch.Generator().manual_seed(0))).bfloat16()
    weight[7] = 1.25  # its logit is 10
    for dtype in (torch.bfloat16, torch.float64):
        head, states = torch.nn.Linear(16, 40, bias=False), torch.full((1, 16), 0.5, dtype=dtype, requires_grad=True)
        head.weight = torch.nn.Parameter(weight.to(dtype))
        logprobs, _ = module._project(states, head, torch.tensor([7]), 1.0, False, keep=True)
        assert 0.99 < logprobs.exp().item() < 1
        logprobs.sum().backward()
        gradients.append(torch.cat([states.grad, head.weight.grad]).double())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.02, atol=0)


def test_shared_tokens_are_computed_once():
    prompt = tuple(range(30))
    turns = [Turn(str(n), 0, prompt, (n, n + 1)) for n in range(8)]
    _, _, tokens = tree_by_turn(small_model(), turns, row_tokens=1000, batch_tokens=1000)
    assert tokens == 30 + 8 * 2


def test_the_vocabulary_is_projected_in_chunks(monkeypatch):
    model, turns = small_model(), random_turns(5)
    whole, _, _ = tree_by_turn(model, turns)
    sizes = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, __, output: sizes.append(len(output)))
    monkeypatch.setattr(module, "PROJECTION_BYTES", 4 * 40 * 3)
    chunked, _, _ = tree_by_turn(model, turns)
    hook.remove()
    torch.testing.assert_close(chunked, whole)
    assert max(sizes) == 3


def test_log_probs_are_a_distribution_at_the_temperature():
    model = small_model()
    turns = [Turn(str(token), 0, (1, 2, 3), (token,)) for token in range(40)]
    actual, entropy, _ = tree_by_turn(model, turns, temperature=0.5)
    torch.testing.assert_close(actual.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(entropy[0], -(actual.exp() * actual).sum())
