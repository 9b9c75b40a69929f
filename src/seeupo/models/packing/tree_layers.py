"""Run the layers of a model over a tree-packed batch: all of them, those below a boundary, or those from it on.

In the last layer, only the tokens whose final hidden states are needed are queries and pass through the feed-forward
part; the others are keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.models.packing.tree import TreeBatch
from seeupo.models.packing.tree_attention import Queries, TreeAttention, use_tree_attention

FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose layers can be run one by one."""


def has_known_layers(model: PreTrainedModel) -> bool:
    """Return whether the layers of a model can be run one by one, as in the Llama and Qwen families."""
    return model.config.get_text_config().model_type in FAMILIES


def final_states(model: PreTrainedModel, batch: TreeBatch, positions: Tensor) -> Tensor:
    """Return the last hidden states [M, H] of the tokens at positions [M] of the flattened batch."""
    use_tree_attention(model)
    positions = positions.to(model.device)
    if not has_known_layers(model):
        return _all_states(model, batch)[positions]
    base, layers = _layers(model)
    first = 0 if batch.start is None else batch.start.layer
    states, tables = _inputs(model, batch)
    states = _run(layers[first:-1], states, tables, batch)

    # Only these tokens are queries of the last layer, each once.
    needed, inverse = positions.unique(return_inverse=True)
    queries, rows, columns = _queries(needed, *batch.input_ids.shape)
    selected = (torch.arange(len(states), device=states.device)[:, None], queries.tokens)
    states = layers[-1](
        states[selected],
        attention_mask=None,
        position_embeddings=tuple(table[selected] for table in tables),
        use_cache=False,
        tree=TreeAttention(batch, queries),
        context=(layers[-1].input_layernorm, states, *tables),
    )
    return base.norm(states)[rows, columns][inverse]  # type: ignore[no-any-return]


def states_below(model: PreTrainedModel, batch: TreeBatch, layer: int) -> Tensor:
    """Return hidden states [B, N, H] of the tokens of a batch: the input of the layer with this index."""
    use_tree_attention(model)
    states, tables = _inputs(model, batch)
    return _run(_layers(model)[1][:layer], states, tables, batch)


def _all_states(model: PreTrainedModel, batch: TreeBatch) -> Tensor:
    # A mask with four dimensions is passed through unchanged; the trees have the real masks.
    states: Tensor = model.base_model(
        input_ids=batch.input_ids.to(model.device),
        position_ids=batch.position_ids.to(model.device),
        attention_mask=torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device),
        use_cache=False,
        tree=TreeAttention(batch),
    ).last_hidden_state
    return states.flatten(0, 1)


def _layers(model: PreTrainedModel) -> tuple[Any, Any]:
    base: Any = model.base_model
    return base, base.layers[: base.config.num_hidden_layers]


def _inputs(model: PreTrainedModel, batch: TreeBatch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the hidden states [B, N, H] that the first layer to be computed gets, and the rotary tables [B, N, D]."""
    base: Any = model.base_model
    start = batch.start
    states = base.embed_tokens(batch.input_ids.to(model.device)) if start is None else start.states
    return states, base.rotary_emb(states, position_ids=batch.position_ids.to(model.device))


def _run(layers: Any, states: Tensor, tables: tuple[Tensor, Tensor], batch: TreeBatch) -> Tensor:
    tree = TreeAttention(batch)
    for layer in layers:
        states = layer(states, attention_mask=None, position_embeddings=tables, use_cache=False, tree=tree)
    return states


def _queries(positions: Tensor, rows: int, length: int) -> tuple[Queries, Tensor, Tensor]:
    """Return sorted positions [M] of flattened rows as queries [B, S], and the row and column of each [M] in these."""
    row = positions // length
    counts = row.bincount(minlength=rows)
    column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    tokens = torch.zeros(rows, max(1, int(counts.max())), dtype=torch.long, device=row.device)
    tokens[row, column] = positions % length
    return Queries(tokens, counts.tolist()), row, column
