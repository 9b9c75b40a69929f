"""Time of an iteration, from the tokens that the limits of a recipe allow and a stated utilization."""

from __future__ import annotations

from dataclasses import dataclass

from seeupo.config.schema import Recipe
from seeupo.planning.memory import cache_bytes_per_token, sampler_weights, virtual_agents
from seeupo.planning.shapes import ModelShape


@dataclass(frozen=True)
class Hardware:
    """Speed of one device.

    Attributes:
        name: Description, printed beside the result.
        flops: Operations per second of large matrix products, at best.
        bandwidth: Bytes per second that are read from its memory, at best.
        utilization: Share of both that is reached.
    """

    name: str
    flops: float
    bandwidth: float
    utilization: float


GPU = Hardware("a GPU of 312 TFLOP/s and 2 TB/s (A100)", 312e12, 2e12, 0.35)
CPU = Hardware("a CPU of 160 GFLOP/s and 20 GB/s (two cores)", 160e9, 20e9, 0.35)


@dataclass(frozen=True)
class Tokens:
    """Tokens of one iteration, if all prompts and responses are as long as allowed.

    Prompts grow evenly from turn to turn up to their limit, and the trajectories of a group share the first one.

    Attributes:
        sampled: Tokens of all responses.
        once: Distinct tokens of all trajectories: each is computed once in a tree-packed pass over all turns.
        by_turn: Tokens of passes over one turn pool at a time, where turns of a trajectory share nothing, unless they
            belong to one virtual agent.
        context: Mean number of tokens that a token attends to.
    """

    sampled: float
    once: float
    by_turn: float
    context: float


@dataclass(frozen=True)
class IterationTime:
    """Seconds of the phases of an iteration."""

    tokens: Tokens
    hardware: Hardware
    sample: float
    update: float

    @property
    def total(self) -> float:
        return self.sample + self.update


def iteration_tokens(shape: ModelShape, recipe: Recipe) -> Tokens:
    """Return the tokens of an iteration at the limits of the recipe."""
    agent, turns, response = recipe.agent, recipe.agent.max_turns, recipe.agent.max_tokens
    prompt = max(1, min(agent.max_prompt_tokens or shape.context, shape.context - response))
    trajectories = recipe.collect.tasks * recipe.collect.group_size
    copies = 1 - 1 / recipe.collect.group_size  # of the first prompt, which all but one trajectory share
    # Turns of one virtual agent share the prompt of its last turn.
    per_agent = recipe.algorithm.options.get("turns_per_agent", 1)
    pools = sum(min(first + per_agent, turns) for first in range(0, turns, per_agent)) / turns
    return Tokens(
        sampled=trajectories * turns * response,
        once=trajectories * (prompt + turns * response - copies * prompt / turns),
        by_turn=trajectories * (prompt * pools + turns * response - copies * prompt * virtual_agents(recipe) / turns),
        context=(prompt + response) / 2,
    )


def iteration_time(shape: ModelShape, recipe: Recipe, hardware: Hardware, *, rows: float) -> IterationTime:
    """Return the time of an iteration; `rows` is the number of sequences that a sampler decodes at a time."""
    tokens = iteration_tokens(shape, recipe)
    speed = hardware.flops * hardware.utilization
    forward = _forward_operations(shape, tokens.context)
    update = forward * _update_tokens(recipe, tokens) / (speed * recipe.engine.trainers)
    devices = max(1, recipe.sampler.count) * recipe.sampler.tensor_parallel
    prefill = forward * tokens.once / (speed * devices)
    read = sampler_weights(shape, recipe) * recipe.sampler.tensor_parallel
    read += rows * tokens.context * cache_bytes_per_token(shape, recipe)
    step = max(read / (hardware.bandwidth * hardware.utilization), rows * forward / speed)
    decode = tokens.sampled / rows * step / devices
    return IterationTime(tokens, hardware, sample=prefill + decode, update=update)


def _forward_operations(shape: ModelShape, context: float) -> float:
    """Return the floating-point operations of a forward pass per token."""
    matrices = sum(inputs * outputs for inputs, outputs in shape.linear.values())
    return 2 * matrices + 4 * shape.layers * shape.heads * shape.head_dim * context


def _update_tokens(recipe: Recipe, tokens: Tokens) -> float:
    """Return the tokens of all passes of an update, in forward passes: a backward pass costs as much as one or two."""
    options, model = recipe.algorithm.options, recipe.model
    step = 1 + (1 if model.lora is not None else 2) + (1 if model.gradient_checkpointing else 0)
    epochs: int = options.get("epochs", 1)
    passes = tokens.once  # log-probs of the policy that sampled
    if "reference" in recipe.algorithm.needs:
        passes += tokens.once
    if recipe.algorithm.name == "seeupo":
        # One more for the ratio after the update, and before it with a trust region or one ratio for several turns.
        before: int = (options["trust_region"] is not None) + (options["turns_per_agent"] > 1) * epochs
        drift_every: int = options["drift_every"]
        passes += tokens.by_turn * (step * epochs + 1 + before)
        return passes + (tokens.once / drift_every if drift_every else 0)
    if "critic" in recipe.algorithm.needs:
        passes += tokens.once * (1 + step * epochs)
    return passes + tokens.once * step * epochs
