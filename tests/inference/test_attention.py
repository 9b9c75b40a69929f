from types import SimpleNamespace

import pytest
import torch

from seeupo.inference import attention
from seeupo.inference.attention import RowAttention, merge_, partial_attention
from seeupo.inference.kv_cache import Context, NewTokens, RowCache
from seeupo.inference.prefix_tree import PrefixTree

PRECISIONS = [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
LAYERS, REPEAT, KV_HEADS, SIZE = 2, 3, 2, 8


@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
def test_merged_partial_attention_equals_full_attention(dtype, bound):
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(4, 2, n, 8, generator=generator, dtype=torch.float64).to(dtype) for n in (3, 12, 12)
    )
    parts = (slice(0, 5), slice(5, 12))
    first, second = (partial_attention(queries, keys[:, :, p], values[:, :, p]) for p in parts)
    merge_(*first, *second)
    scores = queries.double() @ keys.double().transpose(-1, -2) / 8**0.5
    torch.testing.assert_close(first[0].double(), scores.softmax(-1) @ values.double(), rtol=0, atol=bound)
    torch.testing.assert_close(first[1].double(), scores.logsumexp(-1, keepdim=True), rtol=0, atol=bound)


ROWS = {
    "one group, one token each": ([[5], [5], [5]], [4, 0, 7], [1, 1, 1], [0, 1, 2]),
    "two groups after a system prompt": ([[6, 3], [6, 3], [6, 4]], [2, 1, 5], [1, 1, 1], [0, 1, 2]),
    "drafts of several lengths": ([[5], [5], [2], [2]], [4, 0, 9, 1], [3, 1, 2, 1], [2, 0, 3, 1]),
    "nothing shared": ([[], []], [3, 70], [1, 2], [0, 1]),
    "shared by some rows, which are a part of the batch": ([[], [5], [5]], [3, 2, 6], [2, 1, 4], [1, 4, 3]),
}


@pytest.mark.parametrize("few_scores", [0, 10_000], ids=["kernel", "products"])
@pytest.mark.parametrize(("dtype", "bound"), PRECISIONS)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_row_attention_equals_full_attention(monkeypatch, rows, dtype, bound, few_scores):
    """Each new token attends to the shared segments of its row, to private tokens, and to new ones up to itself."""
    monkeypatch.setattr(attention, "FEW_SCORES", few_scores)
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    shape = {"num_layers": LAYERS, "query_heads": REPEAT * KV_HEADS, "kv_heads": KV_HEADS, "head_dim": SIZE}
    cache, tree, new = RowCache(SimpleNamespace(**shape), 6, dtype, torch.device("cpu")), PrefixTree(), []
    for chain, kept, count, row in zip(*rows, strict=True):
        # Rows with equal lengths share the segment; the first token of a segment is its length.
        prompt = [token for depth, length in enumerate(chain) for token in (100 * depth + length, *range(length - 1))]
        context = Context(tree.insert(prompt), list(range(kept)), keys=random(LAYERS, kept, KV_HEADS, SIZE))
        context.values = random(LAYERS, kept, KV_HEADS, SIZE)
        cache.insert(row, context)
        new.append(NewTokens(cache, row, context, range(count)))
    for token in new:
        for segment in token.context.segment.chain():
            if not segment.keys:
                segment.keys, segment.values = (
                    [random(KV_HEADS, len(segment.tokens), SIZE) for _ in range(LAYERS)] for _ in range(2)
                )
    attend, count = RowAttention(cache, new), sum(len(row.tokens) for row in new)
    assert attend.by_products == (few_scores > 0 or dtype == torch.bfloat16)
    for layer in range(LAYERS):
        queries, keys, values = (random(count, heads, SIZE) for heads in (REPEAT * KV_HEADS, KV_HEADS, KV_HEADS))
        actual, first = attend(layer, queries, keys, values), 0
        for row, lengths in zip(new, rows[0], strict=True):
            chain, context = row.context.segment.chain(), row.context
            assert [len(segment.tokens) for segment in chain] == lengths
            here = slice(first, first + len(row.tokens))
            seen_keys, seen_values = (
                torch.cat([*(table[layer].transpose(0, 1) for table in shared), private[layer], own[here]]).double()
                for shared, private, own in (
                    ([segment.keys for segment in chain], context.keys, keys),
                    ([segment.values for segment in chain], context.values, values),
                )
            )
            for number in range(len(row.tokens)):
                end = len(seen_keys) - len(row.tokens) + number + 1
                own = queries[first + number].view(KV_HEADS, REPEAT, SIZE).double()
                scores = torch.einsum("hrd,shd->hrs", own, seen_keys[:end]) / SIZE**0.5
                expected = torch.einsum("hrs,shd->hrd", scores.softmax(-1), seen_values[:end])
                torch.testing.assert_close(actual[first + number].double(), expected.flatten(0, 1), rtol=0, atol=bound)
            first += len(row.tokens)
