"""The wire protocol in both directions: any answer of a worker, and any request that the trainer can make."""

import json
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, VALUES, damaged, mutated, mutated_json
from rollout.tokenizers_like import tokenizer_like
from seeupo.envs.failures import EnvFailure, WorkerFailure
from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pool.sandbox import Limits
from seeupo.envs.pool.serve import Host, answer
from seeupo.envs.pool.slot import Session, Slot
from seeupo.envs.pool.wire import (
    WireError,
    decode,
    encode,
    from_json,
    to_json,
)
from seeupo.envs.pool.worker import Launch, Worker
from seeupo.errors import EnvError, ModelError
from seeupo.rollout.chat import chat_format
from seeupo.rollout.template import Conversation, Template
from seeupo.types import Message, StepResult, Task, Tool, ToolCall
from seeupo.utils import records

RESULT = to_json(
    StepResult(
        (Message("system", "rules"), Message("assistant", "x", (ToolCall("f", {"a": [1]}),))),
        (Tool("f", "a tool", {"type": "object", "properties": {"a": {"type": "array"}}}),),
        0.5,
        terminated=True,
        truncated=True,
        info={"seconds": 1.5},
    )
)
TASK = to_json(Task("t-1", "train", "kind", 5, {"facts": [["a", "b"]], "n": 1}))
ANSWERS = [
    {"id": 1, "value": RESULT},
    {"id": 1, "value": [TASK]},
    {"id": 1, "value": 0.5},
    {"id": 1, "error": "raised", "text": "Traceback: line 1"},
    {"id": 1, "error": "usage", "text": "no such option"},
]
for kind in (StepResult, Message, ToolCall, Tool, Task):
    records._fields_of(kind)  # evaluates annotations of our own, once
LINES = st.sampled_from(ANSWERS).flatmap(mutated_json).map(lambda text: text.encode(errors="surrogatepass") + b"\n")
KINDS = [StepResult, tuple[Task, ...], float, bool, tuple[str, ...], object]


@given(LINES | LINES.flatmap(damaged))
def test_any_line_is_a_message_that_can_be_sent_on(line):
    with nothing_executes(), suppress(WireError):
        message = decode(line)
        with suppress(WireError):
            assert isinstance(from_json(StepResult, message.get("value"), "step"), StepResult)
        with suppress(WireError):
            assert isinstance(from_json(Task, message.get("value"), "task"), Task)
        with suppress(WireError):
            sent = encode(message)
            assert sent.count(b"\n") == 1
            assert repr(decode(sent)) == repr(message)  # NaN differs from itself


@cache
def chats():
    return [chat_format(tokenizer_like(name)) for name in ("qwen2.5", "llama")]


@given(mutated_json({"value": RESULT}, most=2), st.integers(0, 1), st.booleans())
def test_any_result_of_a_worker_becomes_a_prompt(text, number, reasoning):
    try:
        result = from_json(StepResult, decode(text.encode(errors="surrogatepass")).get("value"), "step")
    except WireError:
        return
    template = Template(reasoning=reasoning, max_observation_tokens=50, max_prompt_tokens=200)
    conversation = Conversation.start(chats()[number], template, result)
    with nothing_executes(), suppress(ModelError):  # templates refuse an empty conversation
        before = conversation.prompt_ids()
        conversation.add([5, 6], result)
        assert all(isinstance(token, int) for token in (*before, *conversation.prompt_ids()))


@given(VALUES)
def test_any_value_survives_the_round_trip(value):
    sent = encode({"value": value})
    assert sent.count(b"\n") == 1
    assert repr(decode(sent)) == repr({"value": value})


class PipedWorker(Worker):
    """The trainer's side of a worker whose answers and messages on stderr are given."""

    def __init__(self, answers: bytes, printed: bytes) -> None:
        self.errors, self.answers, self.requests, self.condemned = bytearray(), bytearray(), 0, None
        limits = Limits(call_seconds=20.0, message_mb=1)
        self.launch, self.folder = SimpleNamespace(packages=(), limits=limits, sandbox=None), Path("unused")
        self.process = SimpleNamespace(returncode=0, pid=None)
        self.watchdog = SimpleNamespace(lost=False)
        self.ending = threading.Lock()
        source, self.received = os.pipe()
        self.stdin = os.fdopen(self.received, "wb", buffering=0)
        self._other = os.fdopen(source, "rb", buffering=0)
        self.stdout, self.stderr = _filled(answers), _filled(printed)
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)

    def load(self) -> None: ...

    def discard(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr, self._other):
            stream.close()


def _filled(content: bytes):
    """Return the end of a pipe to read from, which holds these bytes and is closed on the other side."""
    end, source = os.pipe()
    threading.Thread(target=_write, args=(source, content), daemon=True).start()
    return os.fdopen(end, "rb", buffering=0)


def _write(sink: int, content: bytes) -> None:
    with suppress(OSError), os.fdopen(sink, "wb") as file:
        file.write(content)


def test_an_error_that_is_not_text_breaks_the_protocol():
    worker = PipedWorker(b'{"id": 1, "error": "raised", "text": [1]}\n', b"")
    with pytest.raises(WorkerFailure, match="broke the protocol: text is list"):
        worker.call({"op": "splits"})
    worker.discard()


class PipedSlot(Slot):
    """A slot whose workers give these answers, one worker after the other."""

    def __init__(self, workers) -> None:
        self.workers = list(workers)
        super().__init__("fuzz", Launch(python=None, factory="x:Y"), self.start_next)

    def start_next(self, launch):
        return PipedWorker(*(self.workers.pop() if self.workers else (b"", b"")))


WORKERS = st.lists(
    st.tuples(st.lists(LINES | LINES.flatmap(damaged), max_size=3).map(b"".join), st.binary(max_size=20)), max_size=4
)
REQUEST = {"op": "reset", "session": "s", "task": TASK, "seed": 0}


@given(WORKERS, TEXTS | ODD_TEXTS, st.sampled_from(KINDS))
def test_any_answer_of_a_worker_is_a_value_or_a_failure(workers, text, kind):
    slot, session = PipedSlot(workers), Session("s", "t-1")
    step = {"op": "step", "session": "s", "text": text}
    try:
        for call in (
            lambda: slot.call(REQUEST, StepResult, session=session),
            lambda: slot.call(step, StepResult, session=session),
            lambda: slot.call({"op": "score", "session": "s"}, kind, session=session),
            lambda: slot.call({"op": "splits"}, kind),
            lambda: slot.close(session),
        ):
            with nothing_executes(), suppress(EnvFailure, EnvError, WorkerFailure):
                call()
    finally:
        slot._discard_backend()


@cache
def hosts():
    """Return worker programs of both surfaces of the pocket environment, each with its tasks."""
    factories = [PocketFactory(surface=surface, train_tasks=32, test_tasks=4) for surface in ("terse", "natural")]
    return [(factory, [to_json(task) for task in factory.tasks("train")[:4]]) for factory in factories]


@st.composite
def requests(draw):
    factory, tasks = draw(st.sampled_from(hosts()))
    task = draw(st.sampled_from(tasks))
    session = {"session": draw(st.sampled_from(["a", "b"]))}
    plain = [
        {"op": "reset", **session, "task": task, "seed": 0},
        {"op": "step", **session, "text": draw(ODD_TEXTS | TEXTS)},
        {"op": "score", **session},
        {"op": "tasks", "split": "test"},
        {"op": "splits"},
        {"op": "vocabulary"},
        {"op": "expert", **session, "task": task, "mistakes": None},
        {"op": "expert", **session, "task": task, "mistakes": {"seed": 1, "rates": {"wrong_word": 0.5}}},
        {"op": "advise", **session, "result": RESULT},
        {"op": "close", **session},
    ]
    chosen = [plain[0], *draw(st.lists(st.sampled_from(plain), max_size=4))]
    return factory, [draw(mutated(request, most=1)) for request in chosen]


@given(requests())
def test_any_request_is_answered(factory_and_requests):
    factory, messages = factory_and_requests
    host = Host(factory)
    for number, message in enumerate(messages):
        fields = message if isinstance(message, dict) else {"op": message}
        try:
            line = encode({**fields, "id": number})
        except WireError:
            continue
        with nothing_executes():
            reply = decode(answer(host, decode(line)))
        assert reply["id"] == number
        assert ("value" in reply) != ("error" in reply)
        json.dumps(reply)
