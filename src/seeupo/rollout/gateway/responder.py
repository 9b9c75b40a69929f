"""Answer calls with a sampler: from messages to tokens and back."""

from __future__ import annotations

import hmac
import queue
import secrets
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace

from seeupo.errors import ModelError
from seeupo.models.loading import LoadedPolicy
from seeupo.protocols import Sampler
from seeupo.rollout.chat import chat_format
from seeupo.rollout.gateway.calls import Answer, Call, Caller, CallError
from seeupo.rollout.gateway.tool_calls import ParsedResponse, parse_response
from seeupo.rollout.gateway.transcript import Transcript
from seeupo.types import Completion, CompletionEnd, GenerationRequest, Message, SamplingParameters

GREEDY_TEMPERATURE = 0.01
"""Temperature below which sampling is greedy."""


@dataclass(frozen=True, eq=False)
class QueuedCall:
    """A call that waits for its answer; with `count_only`, for the number of its prompt's tokens."""

    call: Call
    answer: Future[Answer]
    count_only: bool = False
    agent_role: str = ""


@dataclass(frozen=True)
class SampledCall:
    """A call whose response is being sampled."""

    queued: QueuedCall
    transcript: Transcript
    request: GenerationRequest


class Responder:
    """Answers calls that stand alone, as `seeupo serve` does.

    `submit` may be called by any thread; only the thread that calls `work` touches the sampler and the tokenizer.

    Attributes:
        parameters: Sampling parameters of calls that ask for none; `max_tokens` is the limit of every response.
        key: Key that every request must have; None for no key.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        sampler: Sampler,
        *,
        name: str,
        parameters: SamplingParameters,
        key: str | None = None,
    ) -> None:
        self.sampler = sampler
        self.name = name
        self.parameters = parameters
        self.key = key
        self.chat = chat_format(policy.tokenizer)
        self.context_length = policy.context_length
        self._queue: queue.SimpleQueue[QueuedCall] = queue.SimpleQueue()
        self._sampled: dict[str, SampledCall] = {}

    def check(self, caller: Caller) -> None:
        if self.key is not None and not hmac.compare_digest(caller.key.encode(), self.key.encode()):
            raise CallError(401, "the API key is missing or wrong")

    def submit(self, call: Call, caller: Caller, *, count_only: bool = False) -> Future[Answer]:
        self.check(caller)
        queued = QueuedCall(call, Future(), count_only, caller.agent_role)
        self._queue.put(queued)
        return queued.answer

    def lose(self, answer: Future[Answer], caller: Caller) -> None:
        answer.cancel()

    def work(self, wait_seconds: float) -> None:
        """Begin queued calls and sample one step; without any, wait for the next call."""
        try:
            queued = self._queue.get(block=not self._sampled, timeout=wait_seconds)
            while True:
                self._begin(queued)
                queued = self._queue.get_nowait()
        except queue.Empty:
            pass
        for completion in self.sampler.poll() if self._sampled else ():
            self._finish(self._sampled.pop(completion.id), completion)

    def _begin(self, queued: QueuedCall) -> None:
        call = queued.call
        if not queued.answer.set_running_or_notify_cancel():
            return
        transcript = Transcript(self.chat)
        try:
            prompt = transcript.prompt_ids(call.messages, call.tools)
            if queued.count_only:
                queued.answer.set_result(counted(prompt, self.name))
                return
            room = self.context_length - len(prompt)
            if room < 1:
                raise CallError(
                    400, f"the prompt has {len(prompt)} tokens; the context of the model has {self.context_length}"
                )
            limit = min(room, self.parameters.max_tokens, call.max_tokens or room)
            request = GenerationRequest(
                id=secrets.token_hex(12),
                prompt_ids=prompt,
                seed=secrets.randbits(63) if call.seed is None else call.seed % 2**63,
                parameters=replace(chosen(self.parameters, call), max_tokens=limit),
                agent=sum(message.role == "assistant" for message in call.messages),
                agent_role=queued.agent_role,
            )
            self.sampler.submit(request)
        except (CallError, ModelError) as error:
            queued.answer.set_exception(error if isinstance(error, CallError) else CallError(400, str(error)))
            return
        self._sampled[request.id] = SampledCall(queued, transcript, request)

    def _finish(self, sampled: SampledCall, completion: Completion) -> None:
        answer = answer_of(sampled.transcript, sampled.queued.call, sampled.request, completion, model=self.name)
        sampled.queued.answer.set_result(answer)


def chosen(default: SamplingParameters, call: Call) -> SamplingParameters:
    """Return the sampling parameters of a call where it may choose them."""
    temperature = default.temperature if call.temperature is None else call.temperature
    top_p = default.top_p if not call.top_p else call.top_p
    if temperature < GREEDY_TEMPERATURE:
        return replace(default, temperature=1.0, top_k=1, stop=call.stop)
    return replace(default, temperature=temperature, top_p=top_p, stop=call.stop)


def check_distribution(call: Call, parameters: SamplingParameters) -> None:
    """Refuse sampling parameters that are not those of the recipe: training needs its distribution."""
    for name, value in {"temperature": call.temperature, "top_p": call.top_p}.items():
        expected = getattr(parameters, name)
        if value not in (None, expected):
            raise CallError(400, f"{name} = {value:g}: training samples with {expected:g}; leave it out")


def answer_of(
    transcript: Transcript, call: Call, request: GenerationRequest, completion: Completion, *, model: str
) -> Answer:
    """Return what the program receives for a completion, and add it to the transcript of the conversation."""
    chat = transcript.chat
    complete = completion.end is CompletionEnd.END_OF_TURN
    text = str(chat.tokenizer.decode(list(completion.ids[:-1] if complete else completion.ids)))
    stop = None
    if completion.end is CompletionEnd.STOP_STRING:
        stop = min((stop for stop in call.stop if stop in text), key=text.index, default=None)
        text = text if stop is None else text[: text.index(stop)]
    parsed = parse_response(chat, text, call.tools)
    transcript.add(Message("assistant", parsed.content, parsed.calls), request.prompt_ids, completion.ids)
    return Answer(
        id=request.id,
        model=model,
        created=int(time.time()),
        parsed=parsed,
        end=completion.end,
        stop=stop,
        prompt_tokens=len(request.prompt_ids),
        tokens=tuple(
            (str(chat.tokenizer.decode([id_])) if call.logprobs else "", logprob)
            for id_, logprob in zip(completion.ids, completion.logprobs, strict=True)
        ),
    )


def counted(prompt: tuple[int, ...], model: str) -> Answer:
    """Return an answer without a response, for the length of its prompt."""
    return Answer(
        id="", model=model, created=0, parsed=ParsedResponse(""), end=CompletionEnd.LENGTH, stop=None,
        prompt_tokens=len(prompt), tokens=(),
    )  # fmt: skip
