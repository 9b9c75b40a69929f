"""Memory of a run on each GPU, from the shape of its model.

Sizes are those of this library's own code path: tree-packed rows, logits in chunks, AdamW. The formulas are compared
with counted tensors of small models in tests/planning/test_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from seeupo.config.model_settings import PROJECTION_BYTES, SNAPSHOT_BYTES
from seeupo.config.schema import Recipe
from seeupo.planning.shapes import ModelShape

GIB = 2**30
FLOAT = 4
"""Bytes of a float32, the data type of trained weights, gradients, moments and norms."""
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
LOGIT_COPIES = 2
"""Tensors of the size of the logits that exist together: scaled logits, which become their own gradient, and a copy."""
RESERVE = 0.08
"""Share of a GPU that is kept free: CUDA context, communication buffers, fragmentation."""


@dataclass(frozen=True)
class Part:
    """Memory of one kind on each GPU that trains.

    Attributes:
        transient: Whether it exists during an update only, so a sampler that shares the GPU can use it.
        on_cpu: Whether it is in the memory of the CPU instead.
    """

    name: str
    size: float
    transient: bool = False
    on_cpu: bool = False


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of a rank of the trainer."""

    parts: tuple[Part, ...]

    @property
    def resident(self) -> float:
        """Bytes on the GPU between updates."""
        return sum(part.size for part in self.parts if not part.transient and not part.on_cpu)

    @property
    def peak(self) -> float:
        """Bytes on the GPU in an update."""
        return sum(part.size for part in self.parts if not part.on_cpu)

    @property
    def on_cpu(self) -> float:
        """Bytes in the memory of the CPU."""
        return sum(part.size for part in self.parts if part.on_cpu)


def training_memory(shape: ModelShape, recipe: Recipe) -> TrainingMemory:
    """Return the memory of each rank at its peak, in the middle of an update with several micro-batches."""
    return TrainingMemory(tuple(part for part in _parts(shape, recipe) if part.size))


def _parts(shape: ModelShape, recipe: Recipe) -> Iterator[Part]:
    model, engine = recipe.model, recipe.engine
    shards = engine.trainers // engine.replicas
    offloaded = engine.kind == "cluster" and engine.cpu_offload
    trained = shape.trained_sizes(model, recipe.optimizer)
    width, stored = _width(recipe), _stored(recipe)
    adapters = sum(trained) if model.lora is not None else 0
    moments = 2 * (virtual_agents(recipe) if recipe.optimizer.moments == "per_agent" else 1)

    def sharded(name: str, size: float, *, transient: bool = False) -> Part:
        return Part(name, size / shards, transient, offloaded)

    yield sharded("weights", shape.parameters * stored + adapters * FLOAT)
    yield sharded("gradients", sum(trained) * max(FLOAT, stored), transient=True)
    yield sharded("optimizer", moments * sum(trained) * max(FLOAT, stored))
    if recipe.algorithm.options.get("trust_region") is not None:
        yield sharded("weights before a step", sum(trained) * max(FLOAT, stored), transient=True)
    if "reference" in recipe.algorithm.needs:
        copied = stored if model.reference_dtype is None else BYTES[model.reference_dtype]
        yield sharded("reference policy", adapters * FLOAT if model.lora is not None else shape.parameters * copied)
    if "critic" in recipe.algorithm.needs and recipe.critic.backbone == "own":
        backbone = shape.parameters - (shape.vocabulary * shape.hidden if "lm_head.weight" in shape.sizes else 0)
        yield sharded("critic", backbone * (stored + 3 * max(FLOAT, stored)))
    gathers = shards > 1 or offloaded
    if gathers:
        # The outermost module and two layers are whole at a time; so are the gradients of what is being computed.
        gathered = (shape.outer_parameters + 2 * shape.layer_parameters) * width
        yield Part("gathered weights", gathered, transient=True)
        if model.lora is None:
            gradients = (shape.outer_parameters + shape.layer_parameters) * FLOAT
            yield Part("gathered gradients", gradients, transient=True)
    elif width < stored:
        yield Part("weights in the compute type", shape.parameters * width, transient=True)
    yield Part("activations", packed_tokens(recipe) * _kept_activations(shape, recipe), transient=True)
    if shape.trunk_layers(model, recipe.optimizer):
        yield Part("hidden states below the trained layers, at most", model.trunk_gib * GIB, transient=True)
    # A backward pass first computes logits and the gradient of the output head, then layer by layer.
    logits = logits_bytes(shape, recipe) + (0 if gathers else max(trained, default=0) * max(FLOAT, stored))
    layer = packed_tokens(recipe) * _temporary_activations(shape, recipe)
    yield Part("logits chunk" if logits > layer else "layer in computation", max(logits, layer), transient=True)


def virtual_agents(recipe: Recipe) -> int:
    """Return the number of virtual agents of an episode at the turn limit."""
    per_agent: int = recipe.algorithm.options.get("turns_per_agent", 1)
    return math.ceil(recipe.agent.max_turns / per_agent)


def _kept_activations(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes that a forward pass keeps per token for the backward pass, all layers together."""
    inputs = shape.hidden * FLOAT
    if recipe.model.gradient_checkpointing:
        return (shape.layers + 3) * inputs
    layer = _layer_activations(shape, recipe)
    # Of the last layer, only tokens that predict an action pass all parts; the others become keys and values.
    share, width = recipe.agent.max_tokens / longest_turn(recipe), _width(recipe)
    context = 2 * inputs + (shape.hidden + 2 * shape.kv_heads * shape.head_dim) * width
    return (shape.layers - 1) * layer + context + share * (layer + 3 * inputs)


def _temporary_activations(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes per token that exist besides while one layer is computed in the backward pass."""
    gradients = 2 * shape.intermediate * _width(recipe)
    recomputed = _layer_activations(shape, recipe) - shape.hidden * FLOAT
    return gradients + (recomputed if recipe.model.gradient_checkpointing else 0)


def _layer_activations(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes that one layer keeps per token.

    Norms keep their input and, if their weights are trained, the normalized input, in float32. Each linear layer keeps
    its input; with mixed precision each has a copy of its own. Attention keeps queries, keys, values, its output and
    the copy in which heads are joined; the feed-forward part four tensors.
    """
    width, lora = _width(recipe), recipe.model.lora
    mixed = width < FLOAT
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norm = max(FLOAT, width)
    norms = 2 * shape.hidden * (1 if lora is not None else 2)
    if shape.query_norms:
        norms += (queries + keys) * (1 if lora is not None else 2)
    inputs = shape.hidden * (5 if mixed else 2)
    adapters = 0
    if lora is not None:
        adapters = sum(lora.rank for name in shape.linear if name.rpartition(".")[2] in lora.targets) // shape.layers
    return norms * norm + (inputs + 3 * queries + 2 * keys + 4 * shape.intermediate + adapters) * width


def packed_tokens(recipe: Recipe) -> int:
    """Return the tokens of the largest micro-batch: model.batch_tokens, or a longer turn, which is never split."""
    return max(recipe.model.batch_tokens, longest_turn(recipe))


def longest_turn(recipe: Recipe) -> int:
    """Return the limit of prompt and response in tokens; without a limit of prompts, the response only."""
    return (recipe.agent.max_prompt_tokens or 0) + recipe.agent.max_tokens


def logits_bytes(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes of the largest chunk of logits with its copies."""
    actions = math.ceil(packed_tokens(recipe) * recipe.agent.max_tokens / longest_turn(recipe))
    tokens = min(actions, max(1, PROJECTION_BYTES // (FLOAT * shape.vocabulary)))
    return LOGIT_COPIES * tokens * shape.vocabulary * max(FLOAT, _width(recipe))


def cache_bytes_per_token(shape: ModelShape, recipe: Recipe) -> float:
    """Return the size of one token's keys and values in a sampler."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * _width(recipe)


def sampler_weights(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes of a sampler's weights on each of its GPUs."""
    return (shape.parameters + _turn_adapters(shape, recipe)) * _width(recipe) / recipe.sampler.tensor_parallel


def snapshot_bytes(shape: ModelShape, recipe: Recipe) -> float:
    """Return the bytes of the snapshot of the weights that a local sampler decodes from, beside the weights."""
    size = (shape.parameters + _turn_adapters(shape, recipe)) * _width(recipe)
    return size if recipe.model.dtype != "bfloat16" and size <= SNAPSHOT_BYTES else 0.0


def _turn_adapters(shape: ModelShape, recipe: Recipe) -> int:
    """Return the number of weights of adapters per turn or role, which a sampler cannot merge into the others."""
    lora = recipe.model.lora
    return 0 if lora is None or lora.adapters is None else sum(shape.adapter_sizes(lora))


def _width(recipe: Recipe) -> int:
    """Return the bytes of a number in matrix products."""
    return BYTES[recipe.model.dtype]


def _stored(recipe: Recipe) -> int:
    """Return the bytes of a weight as it is stored: float32 if it is trained, else that of the computation."""
    width = _width(recipe)
    return width if recipe.model.lora is not None else max(FLOAT, width)
