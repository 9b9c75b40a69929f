"""A snapshot of a model's weights for fast decoding: adapters merged, matrices fused, and packed for the CPU.

A decoding step reads every weight once, so its time is the time to read them and to start the small operations between
the products. The snapshot has the same outputs, up to rounding, with fewer operations:

- Queries, keys and values of a layer are one product; so are gate and up.
- The weight of a norm is multiplied into the columns of the matrix after it.
- The rows of queries and keys are reordered, which makes a rotary position one multiplication of complex numbers.
- With one adapter per turn nothing can be merged: the product of the model's matrix is one for all rows, and each
  adapter adds its two small products to its own rows.
- float32 matrices on the CPU have oneDNN's own layout. In measurements it was faster than the plain one for 1 to 2,048
  tokens, so it is used for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from seeupo.models.lora.adapters import is_adapted, merged_weight
from seeupo.models.lora.turn_adapters import turn_adapters


class AdapterRows(NamedTuple):
    """Neighboring rows of a batch that are computed with the same adapter."""

    adapter: int
    rows: slice


@dataclass(frozen=True)
class Matrix:
    """A linear layer: weight [out, in] and bias [out], and for each adapter its A [r, in] and scaled B [out, r]."""

    weight: Tensor
    bias: Tensor | None
    adapters: tuple[tuple[Tensor, Tensor], ...] = ()

    def interleaved(self, heads: int) -> Matrix:
        """Return the layer with its outputs reordered as `interleave` does."""
        bias = None if self.bias is None else interleave(self.bias, heads)
        return Matrix(interleave(self.weight, heads), bias, tuple((a, interleave(b, heads)) for a, b in self.adapters))


class Product:
    """Multiplication of states [N, in] by a linear layer."""

    def __init__(self, matrix: Matrix) -> None:
        weight = matrix.weight
        self.packed = weight.dtype == torch.float32 and weight.is_cpu and torch.backends.mkldnn.is_available()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight
        self.bias = matrix.bias
        self.adapters = [(a.T.contiguous(), b.T.contiguous()) for a, b in matrix.adapters]

    def __call__(self, states: Tensor, adapters: Sequence[AdapterRows] = ()) -> Tensor:
        product: Tensor
        if self.packed:
            # The arguments after the bias would apply an activation function.
            product = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
        else:
            product = linear(states, self.weight, self.bias)
        if self.adapters:
            for adapter, rows in adapters:
                down, up = self.adapters[adapter]
                product[rows].addmm_(states[rows] @ down, up)
        return product


class Norm:
    """Division by sqrt(sum of squares + dimension * epsilon): an RMS norm without its factors.

    Attributes:
        factors: What the results have to be multiplied by, [dimension]: the norm's weight times sqrt(dimension).
    """

    def __init__(self, module: Any) -> None:
        weight = module.weight.detach()
        self.factors = weight * math.sqrt(len(weight))
        self.floor = weight.new_tensor(math.sqrt(len(weight) * module.variance_epsilon))

    def divisors(self, states: Tensor) -> Tensor:
        """Return the divisors [..., 1] of states [..., dimension]."""
        norms: Tensor = torch.linalg.vector_norm(states, 2, -1, True)
        return norms.hypot_(self.floor)


class LayerWeights:
    """The weights of one layer.

    Attributes:
        qkv, output: Products of the attention. Queries and keys have the order of `interleave` within a head.
        gate_up, down: Products of the MLP.
        head_norm: Norm of each head's queries and keys and its factors [heads, D], or None.
    """

    def __init__(self, layer: Any, query_heads: int, kv_heads: int, adapters: Sequence[str]) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        queries, keys, values, output = (
            _matrix(attention.get_submodule(name), adapters) for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        )
        gate, up, down = (_matrix(mlp.get_submodule(name), adapters) for name in ("gate_proj", "up_proj", "down_proj"))
        self.attention_norm, self.mlp_norm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        rotated = [queries.interleaved(query_heads), keys.interleaved(kv_heads)]
        self.qkv = _stacked([*rotated, values], self.attention_norm)
        self.output = Product(output)
        self.gate_up = _stacked([gate, up], self.mlp_norm)
        self.down = Product(down)
        self.activation = mlp.act_fn
        self.head_norm: tuple[Norm, Tensor] | None = None
        if hasattr(attention, "q_norm"):
            norms = ((Norm(attention.q_norm), query_heads), (Norm(attention.k_norm), kv_heads))
            factors = [interleave(norm.factors, 1).expand(heads, -1) for norm, heads in norms]
            self.head_norm = norms[0][0], torch.cat(factors)

    def project(self, states: Tensor, rotation: Tensor, heads: int, adapters: Sequence[AdapterRows]) -> Tensor:
        """Return queries, keys and values [N, all heads, D] of states [N, H].

        `heads` counts the heads of queries and keys, which are rotated by complex numbers [N, 1, D / 2].
        """
        normed = states / self.attention_norm.divisors(states)
        pairs = self.qkv(normed, adapters).view(len(states), -1, rotation.shape[-1], 2)
        projected = pairs.flatten(2)
        if self.head_norm is not None:
            norm, factors = self.head_norm
            rotated = projected[:, :heads]
            rotated.div_(norm.divisors(rotated)).mul_(factors)
        torch.view_as_complex(pairs)[:, :heads].mul_(rotation)
        return projected

    def add_mlp(self, states: Tensor, adapters: Sequence[AdapterRows]) -> None:
        """Add the output of the MLP to states [N, H] in place."""
        gate, up = self.gate_up(states / self.mlp_norm.divisors(states), adapters).chunk(2, 1)
        states.add_(self.down(self.activation(gate).mul_(up), adapters))


class DecodingWeights:
    """The weights of all layers and of the output head."""

    @torch.no_grad()
    def __init__(self, model: Any, query_heads: int, kv_heads: int) -> None:
        per_turn = turn_adapters(model)
        names = () if per_turn is None else per_turn.names
        self.layers = [LayerWeights(layer, query_heads, kv_heads, names) for layer in model.base_model.layers]
        self.head = Product(_matrix(model.get_output_embeddings(), names))


def interleave(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows [heads * D, ...] of each head: the first, the first of its second half, the second, ..."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def _matrix(module: Any, adapters: Sequence[str]) -> Matrix:
    """Return a linear layer with the adapters of these names, or with its only adapter merged."""
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    if not is_adapted(module):
        return Matrix(weight, bias)
    if not adapters:
        return Matrix(merged_weight(module, weight), bias)
    pairs = [
        (module.lora_A[name].weight.detach(), module.lora_B[name].weight.detach() * module.scaling[name])
        for name in adapters
    ]
    return Matrix(weight, bias, tuple(pairs))


def _stacked(parts: list[Matrix], norm: Norm) -> Product:
    """Return one product for several linear layers that follow a norm."""
    weight = torch.cat([part.weight for part in parts]).mul_(norm.factors)
    biases = [part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts]
    bias = torch.cat(biases) if any(part.bias is not None for part in parts) else None
    # Each part adapts its own outputs: the matrices A one below another, the matrices B on a diagonal of blocks.
    count = max(len(part.adapters) for part in parts)
    adapters = []
    for number in range(count):
        pairs = [part.adapters[number] if part.adapters else _nothing(part.weight) for part in parts]
        adapters.append((torch.cat([a for a, _ in pairs]) * norm.factors, torch.block_diag(*(b for _, b in pairs))))
    return Product(Matrix(weight, bias, tuple(adapters)))


def _nothing(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return an adapter of rank 0."""
    return weight.new_empty(0, weight.shape[1]), weight.new_empty(len(weight), 0)
