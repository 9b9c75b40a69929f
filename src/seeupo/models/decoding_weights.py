"""A snapshot of a model's weights for fast decoding: adapters merged, matrices fused, and packed for the CPU.

A decoding step reads every weight once, so its time is that of reading them plus that of the small operations between
the products. The snapshot has the same outputs, up to rounding, with fewer operations:

- Queries, keys and values of a layer are one product; so are gate and up.
- The weight of a norm is multiplied into the columns of the matrix after it.
- The rows of queries and keys are reordered, which makes a rotary position one multiplication of complex numbers.
- float32 matrices on the CPU have oneDNN's own layout. In measurements it was faster than the plain one for 1 to 2,048
  tokens, so it is used for any number of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from seeupo.models.lora.adapters import is_adapted, merged_weight


class Product:
    """Multiplication of states [N, in] by a constant matrix [out, in], with an optional bias [out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = weight.dtype == torch.float32 and weight.is_cpu and torch.backends.mkldnn.is_available()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight
        self.bias = bias

    def __call__(self, states: Tensor) -> Tensor:
        if self.packed:
            # The arguments after the bias would apply an activation function.
            product: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
            return product
        return linear(states, self.weight, self.bias)


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

    def __init__(self, layer: Any, query_heads: int, kv_heads: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [_weight_and_bias(attention.get_submodule(name)) for name in ("q_proj", "k_proj", "v_proj")]
        for number, heads in enumerate((query_heads, kv_heads)):
            weight, bias = projections[number]
            projections[number] = interleave(weight, heads), None if bias is None else interleave(bias, heads)
        self.attention_norm, self.mlp_norm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        self.qkv = _stacked(projections, self.attention_norm)
        self.output = Product(*_weight_and_bias(attention.o_proj))
        self.gate_up = _stacked([_weight_and_bias(module) for module in (mlp.gate_proj, mlp.up_proj)], self.mlp_norm)
        self.down = Product(*_weight_and_bias(mlp.down_proj))
        self.activation = mlp.act_fn
        self.head_norm: tuple[Norm, Tensor] | None = None
        if hasattr(attention, "q_norm"):
            norms = ((Norm(attention.q_norm), query_heads), (Norm(attention.k_norm), kv_heads))
            factors = [interleave(norm.factors, 1).expand(heads, -1) for norm, heads in norms]
            self.head_norm = norms[0][0], torch.cat(factors)

    def project(self, states: Tensor, rotation: Tensor, heads: int) -> Tensor:
        """Return queries, keys and values [N, all heads, D] of states [N, H].

        `heads` counts those of queries and keys, which are rotated by complex numbers [N, 1, D / 2].
        """
        pairs = self.qkv(states / self.attention_norm.divisors(states)).view(len(states), -1, rotation.shape[-1], 2)
        projected = pairs.flatten(2)
        if self.head_norm is not None:
            norm, factors = self.head_norm
            rotated = projected[:, :heads]
            rotated.div_(norm.divisors(rotated)).mul_(factors)
        torch.view_as_complex(pairs)[:, :heads].mul_(rotation)
        return projected

    def add_mlp(self, states: Tensor) -> None:
        """Add the output of the MLP to states [N, H] in place."""
        gate, up = self.gate_up(states / self.mlp_norm.divisors(states)).chunk(2, 1)
        states.add_(self.down(self.activation(gate).mul_(up)))


class DecodingWeights:
    """The weights of all layers and of the output head."""

    @torch.no_grad()
    def __init__(self, model: Any, query_heads: int, kv_heads: int) -> None:
        self.layers = [LayerWeights(layer, query_heads, kv_heads) for layer in model.base_model.layers]
        self.head = Product(*_weight_and_bias(model.get_output_embeddings()))


def interleave(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows [heads * D, ...] of each head: the first, the first of its second half, the second, ..."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def _weight_and_bias(module: Any) -> tuple[Tensor, Tensor | None]:
    weight, bias = module.weight.detach(), module.bias
    merged = merged_weight(module, weight) if is_adapted(module) else weight
    return merged, None if bias is None else bias.detach()


def _stacked(parts: list[tuple[Tensor, Tensor | None]], norm: Norm) -> Product:
    """Return one product for several matrices that follow a norm."""
    weight = torch.cat([weight for weight, _ in parts]).mul_(norm.factors)
    biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in parts]
    return Product(weight, torch.cat(biases) if any(bias is not None for _, bias in parts) else None)
