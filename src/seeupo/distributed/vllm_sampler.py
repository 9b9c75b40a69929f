"""vLLM as a sampler: exact token ids, log-probs at the sampling temperature, weights replaced in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from seeupo.config.model_settings import LoraSettings
from seeupo.distributed.vllm_adapters import ServedAdapters
from seeupo.inference.sampling import check_idle, check_request
from seeupo.protocols import WeightSource
from seeupo.types import Completion, CompletionEnd, GenerationRequest, Turn

CHUNK_BYTES = 2**30
"""Size of the weights that are transferred at once."""
Transfer = Literal["files", "nccl", "ipc"]


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """Options of a vLLM engine.

    Attributes:
        model: Folder or hub id with the model's configuration, tokenizer and initial weights.
        end_tokens: Tokens that end a turn.
        max_rows: Maximum number of sequences sampled at a time.
        tensor_parallel, gpu_memory: As in `SamplerSettings`.
        transfer: Backend of vLLM's weight transfer: "files" works everywhere; "nccl" and "ipc" receive weights from
            the GPUs of a cluster engine (see `distributed.vllm_transfer`) and have never been run.
        shared: Whether a trainer uses the same GPU, so that `release` has to free its memory.
        lora: Settings of the adapters of a policy with one per turn; None for any other policy.
    """

    model: str
    context_length: int
    end_tokens: tuple[int, ...]
    dtype: str = "float32"
    max_rows: int = 64
    tensor_parallel: int = 1
    gpu_memory: float = 0.85
    transfer: Transfer = "files"
    shared: bool = False
    lora: LoraSettings | None = None


class VllmSampler:
    """Samples with a vLLM engine in this process, which should do nothing else.

    Weights are loaded with adapters merged; of a policy with one adapter per turn, only the adapters are loaded, and
    the model that vLLM has read stays as it is. On GPUs it has never been run.
    """

    def __init__(self, options: VllmOptions) -> None:
        self.options, self.version = options, 0
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine runs here, so seeds give the same tokens
            VLLM_HOST_IP="127.0.0.1",  # all workers of an engine are on this machine
            VLLM_ALLOW_INSECURE_SERIALIZATION="0",  # nothing is unpickled for a caller
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="ERROR",
        )
        from vllm import EngineArgs
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        from seeupo.distributed.vllm_weights import BACKEND, WorkerExtension

        self._adapters = None if options.lora is None else ServedAdapters(options.lora)
        on_cpu, files = bool(current_platform.is_cpu()), options.transfer == "files"
        arguments = EngineArgs(
            model=options.model,
            tokenizer=options.model,
            trust_remote_code=False,
            dtype=options.dtype,
            max_model_len=options.context_length,
            max_num_seqs=options.max_rows,
            tensor_parallel_size=options.tensor_parallel,
            # Within an actor vLLM would ask Ray for more resources, which are not reserved.
            distributed_executor_backend="mp" if options.tensor_parallel > 1 else "uni",
            gpu_memory_utilization=options.gpu_memory,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # at the sampling temperature, not the model's raw ones
            enforce_eager=on_cpu,
            enable_sleep_mode=options.shared and not on_cpu,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND if files else options.transfer),
            worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
            seed=0,
            disable_log_stats=True,
            **({} if self._adapters is None else self._adapters.arguments()),
        )
        self._engine: Any = LLMEngine.from_engine_args(arguments)
        self._asleep = False
        if files:
            self.init_weight_transfer_engine({})

    def submit(self, request: GenerationRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if self._asleep:
            raise RuntimeError("this sampler has released its weights; expected a sync before the next request")
        check_request(request, self.options.context_length, training=True)
        adapter = None if self._adapters is None else self._adapters.of_turn(request.agent, request.agent_role)
        parameters = request.parameters
        self._engine.add_request(
            request.id,
            {"prompt_token_ids": list(request.prompt_ids)},
            SamplingParams(
                max_tokens=parameters.max_tokens,
                temperature=parameters.temperature,
                top_p=parameters.top_p,
                top_k=parameters.top_k,
                stop=list(parameters.stop),
                include_stop_str_in_output=True,
                stop_token_ids=list(self.options.end_tokens),
                seed=request.seed % 2**63,
                logprobs=0,  # of the sampled token only
                detokenize=bool(parameters.stop),
                skip_special_tokens=False,  # a stop string may be a special token
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
            lora_request=adapter,
        )

    def poll(self) -> list[Completion]:
        """Run one step of the engine and return the completions that have finished."""
        if not self._engine.has_unfinished_requests():
            return []
        return [self._completion(output) for output in self._engine.step() if output.finished]

    def cancel(self, ids: Iterable[str]) -> None:
        self._engine.abort_request(list(ids))

    def sync(self, engine: WeightSource, version: int) -> None:
        if self._adapters is not None:
            self._begin_sync()
            self._adapters.load(self._engine, engine.weights())
            self._end_sync(version)
            return
        self.start_weight_update()
        with tempfile.TemporaryDirectory(prefix="seeupo-weights-") as folder:
            for number, chunk in enumerate(chunks(engine.weights(), CHUNK_BYTES)):
                file = Path(folder) / f"{number}.safetensors"
                save_file({name: weight.detach().cpu().contiguous() for name, weight in chunk}, file)
                self.update_weights({"path": str(file)})
                file.unlink()
        self.finish_weight_update(version)

    # The next four methods are the steps of vLLM's weight transfer.

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", info)

    def start_weight_update(self) -> None:
        self._begin_sync()
        self._call("start_weight_update")

    def update_weights(self, info: dict[str, Any]) -> None:
        self._call("update_weights", info)

    def finish_weight_update(self, version: int) -> None:
        self._call("finish_weight_update")
        self._end_sync(version)

    def _begin_sync(self) -> None:
        check_idle(self._engine.has_unfinished_requests(), "weights cannot change")
        self._wake("weights")

    def _end_sync(self, version: int) -> None:
        self._wake("kv_cache")
        self._asleep = False
        if not self._engine.reset_prefix_cache():
            raise RuntimeError(
                "vLLM kept the keys and values of old weights; expected an empty prefix cache after a sync"
            )
        self.version = version

    def draft_from(self, turns: Iterable[Turn]) -> None:
        """Do nothing: this sampler guesses no tokens."""

    def release(self) -> None:
        """Put vLLM to sleep until the next sync if a trainer shares the GPU; on CPUs it then keeps its memory."""
        check_idle(self._engine.has_unfinished_requests(), "memory cannot be released")
        if self.options.shared and not self._asleep:
            # Weights are not kept, because the next sync brings new ones: all of them, or only the adapters.
            self._engine.sleep(level=2 if self._adapters is None else 1)
            self._asleep = True

    def _wake(self, tag: str) -> None:
        if self._asleep:
            self._engine.wake_up(tags=[tag])

    def _call(self, method: str, *arguments: Any) -> None:
        self._engine.collective_rpc(method, args=arguments)

    def _completion(self, output: Any) -> Completion:
        result = output.outputs[0]
        ids = tuple(result.token_ids)
        logprobs = tuple(row[token].logprob for token, row in zip(ids, result.logprobs, strict=True))
        end = CompletionEnd.LENGTH
        if result.finish_reason == "stop":
            # The text of an end token may contain a stop string.
            by_string = isinstance(result.stop_reason, str) and ids[-1] not in self.options.end_tokens
            end = CompletionEnd.STOP_STRING if by_string else CompletionEnd.END_OF_TURN
        return Completion(id=output.request_id, ids=ids, logprobs=logprobs, end=end, version=self.version)


def chunks(weights: Iterator[tuple[str, Tensor]], limit: int) -> Iterator[Sequence[tuple[str, Tensor]]]:
    """Yield weights in lists of at most `limit` bytes, or of a single larger one."""
    chunk: list[tuple[str, Tensor]] = []
    size = 0
    for name, weight in weights:
        if chunk and size + weight.nbytes > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, weight))
        size += weight.nbytes
    if chunk:
        yield chunk
