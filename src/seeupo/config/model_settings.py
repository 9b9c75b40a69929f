"""Settings of the model: size of the model `tiny`, memory use, LoRA adapters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from seeupo.config.option_types import NonNegative, NonNegativeInt, Options, PositiveInt, Range
from seeupo.utils.option_checks import OptionError

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special tokens of the model `tiny`."""
UNKNOWN = "<unk>"
ROLES = ("system", "user", "assistant", "tool")
PROJECTION_BYTES = 256 * 2**20
"""Maximum size of the logits that are computed at once."""
SNAPSHOT_BYTES = 4 * 2**30
"""Size of a model's weights above which a local sampler makes no snapshot of them, which needs as much memory again."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's option `max_lora_rank`: the rank that adapters are padded to."""
AGENT_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of the roles of an agent program, which are part of addresses and of the names of adapters."""


def are_agent_roles(names: Sequence[object]) -> bool:
    """Return whether these are names of different roles."""
    return all(isinstance(name, str) and AGENT_ROLE.fullmatch(name) for name in names) and len(set(names)) == len(names)


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Options):
    """Size of a `tiny` model. The defaults give 0.6 million weights.

    Attributes:
        words: Closed vocabulary: each word is one token, all other words are unknown.
        corpus: Texts to train the byte-level BPE tokenizer on; without texts every byte is a token.
        vocabulary: Maximum number of tokens of the BPE tokenizer, including 256 bytes and the special tokens.
    """

    width: PositiveInt = 128
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    context: PositiveInt = 1024
    vocabulary: Annotated[int, Range(256 + len(SPECIAL_TOKENS))] = 1024
    words: Sequence[str] = ()
    corpus: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise OptionError("width", self.width, f"a multiple of 2 * heads = {2 * self.heads}")


@dataclass(frozen=True, kw_only=True)
class TinySettings(Options):
    """Size of the model `tiny`, which is built from a seed when it is loaded.

    Attributes:
        width: Width of the transformer; a multiple of twice the number of heads.
        layers: Number of transformer layers.
        heads: Number of attention heads.
        context: Context length in tokens.
        words: One token for each word if the environment has a closed vocabulary, as `pocket` with its terse surface.
        vocabulary: Maximum number of tokens for other text, at least 259: frequent parts of the texts in the expert's
            episodes of 64 training tasks (byte-level BPE). 0 encodes text as bytes.
    """

    width: PositiveInt = 128
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    context: PositiveInt = 1024
    words: bool = True
    vocabulary: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config()

    def config(self, *, words: Sequence[str] = (), corpus: Sequence[str] = (), seed: int = 0) -> TinyConfig:
        """Return the configuration of a model with these words, or a tokenizer for these texts."""
        return TinyConfig(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            context=self.context,
            words=words,
            corpus=corpus,
            vocabulary=self.vocabulary or TinyConfig.vocabulary,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Options):
    """LoRA adapters on linear layers (needs the extra 'lora'); all other weights are frozen.

    Attributes:
        rank: Rank of each adapter.
        alpha: Scale of the adapters: their output is multiplied by alpha / rank.
        targets: Names of the adapted linear layers (`target_modules` of peft).
        layers: Number of transformer layers with adapters, counted from the top; "none" means all. The layers below
            them are computed once per iteration.
        seed: Random seed of the initialization.
        per_turn: Number N of adapters, one per turn: the virtual agent a of a turn (algorithm.turns_per_agent) trains
            and samples with adapter min(a, N - 1). All start equal. "none" means one adapter for all turns.
        per_role: Roles of the agent program, each of which trains and samples with an adapter of its own. All start
            equal. Empty means that roles have no adapters of their own.
        turns_per_agent: Number of consecutive turns of a virtual agent.
    """

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    layers: PositiveInt | None = None
    seed: int = 0
    per_turn: PositiveInt | None = None
    per_role: tuple[str, ...] = ()
    turns_per_agent: int = field(default=1, metadata={"set_by": "algorithm.turns_per_agent"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_role and self.per_turn is not None:
            raise ValueError("per_turn and per_role: expected at most one of them. Leave one out.")
        if not are_agent_roles(self.per_role):
            raise OptionError("per_role", self.per_role, "different names of up to 64 letters, digits, _ and -")

    @property
    def adapters(self) -> int | None:
        """Number of adapters, if turns or roles have their own; None for one for all turns."""
        return len(self.per_role) or self.per_turn


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Options):
    """The policy and its memory use.

    Attributes:
        name: `tiny`, a model of `seeupo models list`, a folder with safetensors (a model, or a LoRA adapter that names
            its base model), or owner/name on a model hub.
        device: PyTorch device, such as "cpu" or "cuda"; "auto" means the GPU if there is one, otherwise the CPU.
        dtype: Data type of the computation. "bfloat16" keeps float32 weights, which would not move by small updates
            otherwise; with `lora`, the frozen weights are bfloat16 as well. On CPUs float32 is the fastest.
        reference_dtype: Data type of the reference policy's weights, which are a copy unless `lora` is set; "none"
            means that of the policy's weights.
        tiny: Size of the model `tiny`.
        lora: LoRA adapters to train instead of the weights; "none" trains all weights, or those selected by
            optimizer.trainable. If `name` is a LoRA adapter, it is trained further with the same settings, and merged
            with "none".
        batch_tokens: Number of tokens per forward pass in an update.
        row_tokens: Length of a tree-packed row in tokens; "none" means four times the width of the model.
        gradient_checkpointing: Recomputation of activations in the backward pass, which saves memory and takes longer.
        trunk_gib: Limit in GiB per process of the hidden states below the first trained layer, which are computed once
            per iteration if optimizer.trainable or lora.layers leave out the lower layers. Turns beyond it are computed
            in full; 0 keeps none.
    """

    name: str = "tiny"
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    reference_dtype: Literal["bfloat16"] | None = None
    tiny: TinySettings = field(default_factory=TinySettings)
    lora: LoraSettings | None = None
    batch_tokens: PositiveInt = 4096
    row_tokens: PositiveInt | None = None
    gradient_checkpointing: bool = False
    trunk_gib: NonNegative = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference_dtype is not None and self.lora is not None:
            expected = '"none" with model.lora, because the reference policy then shares the frozen weights'
            raise OptionError("reference_dtype", self.reference_dtype, expected)


def word_tokens(words: Sequence[str]) -> list[str]:
    """Return the tokens of a model `tiny` with a closed vocabulary."""
    return list(dict.fromkeys((*SPECIAL_TOKENS, UNKNOWN, *ROLES, *words)))
