"""`load_policy`: load a causal language model with its tokenizer and check that it can be trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file

from seeupo.config.model_settings import TinyConfig
from seeupo.errors import ModelError, first_line
from seeupo.models.config_check import check_size, read_config
from seeupo.models.location import has_turn_adapters, is_adapter, locate
from seeupo.models.logprobs import padded_logprobs, tree_logprobs
from seeupo.models.lora.adapter_folders import Adapter, base_name, read_adapter
from seeupo.models.lora.turn_adapters import load_turn_adapters, read_index
from seeupo.models.packing.batching import Packing
from seeupo.models.packing.tree import pack_batches
from seeupo.models.precision import DTYPES, cast_weights, resolve_device, use_exact_norms
from seeupo.models.saving import no_progress_bars
from seeupo.models.tiny import tiny_model, tiny_tokenizer
from seeupo.models.tokenizer_check import check_tokenizer, has_tokenizer
from seeupo.types import Turn

ADAPTER_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""Files of an adapter on a model hub that are downloaded: data only."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A model that can be trained and sampled from.

    Attributes:
        packing: "tree" if log-probs of many turns can share prefixes, "padded" if each turn needs a separate row.
        base: Name by which the weights can be loaded again, for adapters that are trained on them, or None.
        adapter: Adapter that belongs to the model and is not merged into its weights.
        compute_dtype: Data type of matrix products in mixed precision, bfloat16; None for the data type of the weights.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    packing: Packing
    base: str | None = None
    adapter: Adapter | None = None
    compute_dtype: torch.dtype | None = None

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for all computation with the model; without mixed precision it does nothing."""
        dtype = self.compute_dtype
        return nullcontext() if dtype is None else torch.autocast(self.model.device.type, dtype=dtype)

    @property
    def context_length(self) -> int:
        """The model's context length in tokens."""
        return int(self.model.config.get_text_config().max_position_embeddings)


def load_policy(
    name_or_path: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
    tiny: TinyConfig | Mapping[str, Any] | None = None,
    merge: bool = True,
    frozen: bool = False,
) -> LoadedPolicy:
    """Load `tiny`, a model of the catalog, a folder with safetensors (a model or a LoRA adapter), or a Hugging Face id.

    A folder with one adapter per turn gives its base model with all adapters, to sample from.
    Remote code is never run, and weights are read from safetensors only. Nothing has been run on a GPU.

    Args:
        name_or_path: "tiny", a name of `seeupo models list`, a folder, or a Hugging Face id.
        device: PyTorch device; "auto" is the GPU if there is one, and the CPU otherwise.
        dtype: Data type of the computation: "float32", "bfloat16" or "float64". Weights are float32 for "bfloat16" too,
            because small updates would be lost in it.
        tiny: Size and vocabulary of a new `tiny` model, such as {"width": 64, "words": pool.vocabulary()}.
        frozen: The weights are not trained, except for adapters: "bfloat16" then is their data type as well.
        merge: Merge an adapter into the weights of its base model; otherwise the caller adds it.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype = {dtype!r}: expected one of {', '.join(DTYPES)}")
    target = resolve_device(device)
    adapter = base = turns = None
    if name_or_path == "tiny":
        config = tiny if isinstance(tiny, TinyConfig) else TinyConfig(**(tiny or {}))
        tokenizer: PreTrainedTokenizerBase = tiny_tokenizer(config)
        model: PreTrainedModel = tiny_model(config, tokenizer)  # type: ignore[arg-type]
    else:
        files = _locate_parts(name_or_path)
        adapter, turns = files.adapter, files.turn_adapters
        with _base_errors(adapter):
            model, tokenizer = _from_pretrained(files.model, files.tokenizer)
        if adapter is not None and merge:
            adapter.merge_into(model)
        elif turns is None:
            base = base_name(name_or_path if adapter is None else adapter.base)
    _check_vocabulary(model, tokenizer, name_or_path)
    check_tokenizer(tokenizer, name_or_path)
    compute_dtype = prepare(model, dtype, frozen=frozen)
    if turns is not None:
        load_turn_adapters(model, turns)
    torch.nn.Module.to(model, device=target)
    packing = _choose_packing(model, name_or_path)
    return LoadedPolicy(model, tokenizer, packing, base, None if merge else adapter, compute_dtype)


def prepare(model: PreTrainedModel, dtype: str, *, frozen: bool) -> torch.dtype | None:
    """Give a model the data types and settings of training, and return its `compute_dtype`."""
    mixed = dtype == "bfloat16"
    if mixed and frozen:
        cast_weights(model, torch.bfloat16)
    if not mixed:
        torch.nn.Module.to(model, dtype=DTYPES[dtype])
    if dtype == "float64":
        use_exact_norms(model)
    _disable_dropout(model)
    model.eval()
    return torch.bfloat16 if mixed else None


def load_tokenizer(name_or_path: str) -> tuple[PreTrainedTokenizerBase, int]:
    """Return the tokenizer and the context length of a model, without loading its weights. `tiny` reads bytes."""
    if name_or_path == "tiny":
        return tiny_tokenizer(TinyConfig()), TinyConfig().context
    files = _locate_parts(name_or_path)
    try:
        config = read_config(files.model)
        _check_tokenizer_files(files.tokenizer)
        tokenizer = AutoTokenizer.from_pretrained(files.tokenizer, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{files.model} could not be loaded: {first_line(error)}") from None
    check_tokenizer(tokenizer, name_or_path)
    return tokenizer, int(config.get_text_config().max_position_embeddings)


@dataclass(frozen=True)
class _PolicyFiles:
    """Folders or hub ids of a policy's parts: the model without adapters, its tokenizer, and one adapter or many."""

    model: str
    tokenizer: str
    adapter: Adapter | None = None
    turn_adapters: Path | None = None


def _locate_parts(name_or_path: str) -> _PolicyFiles:
    path = locate(name_or_path)
    if has_turn_adapters(Path(path)):
        return _PolicyFiles(locate(read_index(Path(path))[1]), path, turn_adapters=Path(path))
    folder = adapter_folder(path)
    if folder is None:
        return _PolicyFiles(path, path)
    adapter = read_adapter(folder)
    with _base_errors(adapter):
        base = locate(adapter.base)
        if adapter_folder(base) is not None:
            raise ModelError(f"{adapter.base} is an adapter itself; merge it into its base model first")
    has_words = (folder / "tokenizer_config.json").exists() and has_tokenizer(folder)
    return _PolicyFiles(base, str(folder) if has_words else base, adapter)


def adapter_folder(path: str) -> Path | None:
    """Return the folder of an adapter, downloaded if `path` is a name on a model hub; None if it is a model.

    transformers would load adapters itself, together with the model or module that their configuration names.
    """
    if Path(path).is_dir():
        return Path(path) if is_adapter(Path(path)) else None
    try:
        if find_adapter_config_file(path) is None:
            return None
        return Path(snapshot_download(path, allow_patterns=ADAPTER_FILES))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} could not be loaded: {first_line(error)}") from None


@contextmanager
def _base_errors(adapter: Adapter | None) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        if adapter is None:
            raise
        raise ModelError(
            f"{adapter.path} is an adapter, and its base model cannot be loaded: {error}. Folders are looked up in the "
            "working directory; base_model_name_or_path in adapter_config.json names the base model"
        ) from None


def _from_pretrained(path: str, tokenizer_path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    _check_tokenizer_files(tokenizer_path)
    try:
        with no_progress_bars():
            config = read_config(path)
            if Path(path).is_dir():
                check_size(config, Path(path))
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation="sdpa",
                dtype=torch.float32,
                output_loading_info=True,
            )
            model, report = loaded
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, trust_remote_code=False)
    except ModelError:
        raise
    except Exception as error:  # damaged files raise many types, plain Exception among them
        raise ModelError(
            f"{path} could not be loaded: {first_line(error)}. Expected config.json, safetensors and a tokenizer of "
            "the same model; download or copy it again."
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{path} has no weights for {missing[0]}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; "
            "its safetensors files are incomplete or belong to another config.json. Download or copy the model again."
        )
    return model, tokenizer


def _check_tokenizer_files(path: str) -> None:
    """Raise if a model folder has no tokenizer; transformers would make an empty one, in which all text is lost."""
    if Path(path).is_dir() and not has_tokenizer(Path(path)):
        raise ModelError(
            f"{path} has no tokenizer; expected tokenizer.json, tokenizer.model, or vocab.json and merges.txt. "
            "Save the model's tokenizer into the folder: tokenizer.save_pretrained(folder)"
        )


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    rows = embeddings.num_embeddings
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= rows:
        raise ModelError(
            f"{name}: the tokenizer has token ids up to {highest} but the model has only {rows} embeddings; "
            "use the tokenizer that belongs to the model"
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{name}: the tokenizer has no end-of-sequence token, so a turn could never end")


def _disable_dropout(model: PreTrainedModel) -> None:
    """Set all dropout rates to 0, so that log-probs are deterministic."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            object.__setattr__(module, "attention_dropout", 0.0)


def _choose_packing(model: PreTrainedModel, name: str) -> Packing:
    """Return "tree" if tree packing gives the same log-probs as padded rows on a few tokens, and "padded" otherwise."""
    # Tokens from the middle of the vocabulary: misplaced special tokens give extreme values with rounding errors.
    a, b, c, d, e = (int(model.config.get_text_config().vocab_size) // 2 + n for n in range(5))
    turns = [
        Turn("probe", 0, (a, b, c), (d, e)),
        Turn("probe", 1, (a, b, c), (d, a, b)),
        Turn("probe", 2, (a, e), (c, d)),
    ]
    reason = _packing_obstacle(model)
    if reason is None:
        try:
            with torch.no_grad():
                (batch,) = pack_batches(turns, row_tokens=64, batch_tokens=64)
                packed = tree_logprobs(model, batch).logprobs
                plain = padded_logprobs(model, [turns[member] for member in batch.members]).logprobs
            gap = float((packed - plain).abs().max())
            if gap < (1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1):
                return "tree"
            reason = f"its log-probs differ by {gap:.1e}"
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
    warnings.warn(
        f"{name} cannot be tree-packed ({reason}); each turn gets a separate padded row, so shared prompts are "
        "computed once per turn",
        stacklevel=3,
    )
    return "padded"


def _packing_obstacle(model: PreTrainedModel) -> str | None:
    """Return why a model cannot be tree-packed, as far as its configuration shows."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or []
    if any("full" not in kind for kind in kinds):
        return f"not all of its layers use full attention: {', '.join(sorted(set(kinds)))}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True) and not kinds:
        return "it uses sliding-window attention"
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            return f"it transforms its logits ({name})"
    return None
