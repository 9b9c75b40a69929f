import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import anthropic
import httpx2
import openai
import pytest

from seeupo.config.model_settings import TinyConfig
from seeupo.errors import EndpointError
from seeupo.inference import make_sampler
from seeupo.models.loading import load_policy
from seeupo.rollout.gateway import server
from seeupo.rollout.gateway.calls import Caller
from seeupo.rollout.gateway.responder import Responder
from seeupo.rollout.gateway.server import GatewayApp, listen, serving
from seeupo.types import SamplingParameters

POLICY = load_policy("tiny", tiny=TinyConfig(width=32, layers=1, heads=2, context=256))
QUESTION = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "A tool.", "parameters": {"type": "object"}}}]
POSTED = ("/chat/completions", "/responses", "/messages", "/messages/count_tokens")


@contextlib.contextmanager
def served(responder):
    with contextlib.closing(listen(0)) as listener, serving(GatewayApp(responder, "tiny"), listener) as address:
        yield address


@pytest.fixture(scope="module")
def responder():
    responder = Responder(
        POLICY,
        make_sampler(POLICY, training=False),
        name="tiny",
        parameters=SamplingParameters(max_tokens=16),
        key="sk-1",
    )
    running = True

    def work():
        while running:
            responder.work(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    yield responder
    running = False
    thread.join()


@pytest.fixture(scope="module")
def address(responder):
    with served(responder) as address:
        yield address


class Silent:
    """Answers nothing, and remembers the calls."""

    def __init__(self):
        self.answers = []

    def check(self, caller):
        pass

    def submit(self, call, caller, *, count_only=False):
        self.answers.append(Future())
        return self.answers[-1]

    def lose(self, answer, caller):
        answer.cancel()


def openai_client(address, key="sk-1"):
    return openai.OpenAI(base_url=address, api_key=key, max_retries=0)


def anthropic_client(address, key="sk-1"):
    return anthropic.Anthropic(base_url=address.removesuffix("/v1"), api_key=key, max_retries=0)


def test_chat_completions_with_the_openai_client(address):
    client = openai_client(address)
    arguments = {"model": "any", "messages": QUESTION, "tools": TOOLS, "seed": 3, "max_tokens": 5, "logprobs": True}
    completion = client.chat.completions.create(**arguments)
    chunks = list(
        client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
    )  # fmt: skip
    choice = completion.choices[0]
    assert chunks[0].choices[0].delta.content == choice.message.content
    assert chunks[1].choices[0].finish_reason == choice.finish_reason
    assert chunks[2].usage == completion.usage
    assert completion.usage.completion_tokens == len(choice.logprobs.content) <= 5
    assert all(token.logprob <= 0 for token in choice.logprobs.content)
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_responses_with_the_openai_client(address):
    client = openai_client(address)
    response = client.responses.create(model="any", input="hi", max_output_tokens=4)
    events = list(client.responses.create(model="any", input="hi", max_output_tokens=4, stream=True))
    assert response.usage.output_tokens <= 4
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(event.delta for event in events if event.type.endswith(".delta")) == events[-1].response.output_text


def test_messages_with_the_anthropic_client(address):
    client = anthropic_client(address)
    message = client.messages.create(model="any", max_tokens=4, messages=QUESTION)
    with client.messages.stream(model="any", max_tokens=4, messages=QUESTION) as stream:
        streamed = stream.get_final_message()
    count = client.messages.count_tokens(model="any", messages=QUESTION)
    assert message.usage.input_tokens == streamed.usage.input_tokens == count.input_tokens
    assert message.stop_reason in ("max_tokens", "end_turn")


def test_a_stop_text_ends_the_response_and_is_not_part_of_it(address):
    client = openai_client(address)
    arguments = {"model": "any", "messages": QUESTION, "seed": 5}
    whole = client.chat.completions.create(**arguments).choices[0].message.content
    (stop,) = whole.split()[-1:]
    cut = client.chat.completions.create(**arguments, stop=[stop]).choices[0]
    assert cut.message.content == whole[: whole.index(stop)].strip()
    assert cut.finish_reason == "stop"


def test_errors_are_those_of_the_clients(address):
    client = openai_client(address)
    with pytest.raises(openai.BadRequestError, match="n = 2 is not supported: expected 1"):
        client.chat.completions.create(model="any", messages=QUESTION, n=2)
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens; the context of the model has 256"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "long " * 300}])
    with pytest.raises(anthropic.BadRequestError, match="top_k = 3"):
        anthropic_client(address).messages.create(model="any", max_tokens=4, messages=QUESTION, extra_body={"top_k": 3})
    with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
        openai_client(address, "sk-2").models.list()
    with pytest.raises(anthropic.AuthenticationError, match="the API key is missing or wrong"):
        anthropic_client(address, "sk-2").messages.create(model="any", max_tokens=4, messages=QUESTION)
    with pytest.raises(openai.NotFoundError, match=r"expected one of /v1/models, /v1/chat/completions"):
        client.embeddings.create(model="any", input="x")


@pytest.mark.parametrize("path", ["/models", *POSTED])
def test_requests_of_web_pages_and_without_the_key_are_refused(address, path):
    url = address + path
    key = {"Authorization": "Bearer sk-1"}
    method = "GET" if path == "/models" else "POST"
    for headers, status in [
        ({}, 401),
        ({"Authorization": "Basic sk-1"}, 401),
        ({**key, "Host": "evil.example"}, 403),
        ({**key, "Host": "127.0.0.1.evil.example:80"}, 403),
        ({**key, "Origin": "https://evil.example"}, 403),
        ({**key, "Origin": "null"}, 403),
    ]:
        assert httpx2.request(method, url, headers=headers, content=b"{}").status_code == status


@pytest.mark.parametrize("path", POSTED)
def test_large_bodies_are_refused(address, path):
    body = b'{"x": "' + b"y" * server.MAX_BODY_BYTES + b'"}'
    response = httpx2.post(address + path, headers={"x-api-key": "sk-1"}, content=body)
    assert response.status_code == 413


def test_a_body_that_drips_is_refused(monkeypatch):
    monkeypatch.setattr(server, "BODY_SECONDS", 0.2)
    with served(Silent()) as address:
        port = int(address.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_call_is_cancelled_when_its_client_is_gone(monkeypatch):
    monkeypatch.setattr(server, "PING_SECONDS", 0.05)
    silent = Silent()
    with served(silent) as address:
        with pytest.raises(openai.APITimeoutError):
            openai_client(address).with_options(timeout=0.5).responses.create(model="any", input="hi")
        openai_client(address).chat.completions.create(model="any", messages=QUESTION, stream=True).close()
        assert len(silent.answers) == 2
        assert ends(lambda: all(answer.cancelled() for answer in silent.answers))


def ends(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_many_calls_are_answered_at_a_time_and_cancelled_ones_disturb_none(responder, address):
    def ask(number):
        client = openai_client(address)
        return client.chat.completions.create(model="any", messages=QUESTION, seed=number % 4, max_tokens=8)

    futures = [
        responder.submit(server.chat_completions.read({"messages": QUESTION}), Caller(key="sk-1")) for _ in range(8)
    ]
    for future in futures:
        future.cancel()
    with ThreadPoolExecutor(16) as executor:
        texts = [completion.choices[0].message.content for completion in executor.map(ask, range(32))]
    assert texts == texts[:4] * 8


def test_a_server_that_ends_closes_its_calls_and_its_port():
    async def waits(address):
        client = openai.AsyncOpenAI(base_url=address, api_key="sk-1", max_retries=0)
        await client.chat.completions.create(model="any", messages=QUESTION)

    silent = Silent()
    with ThreadPoolExecutor(1) as executor:
        with served(silent) as address:
            waiting = executor.submit(asyncio.run, waits(address))
            assert ends(lambda: silent.answers)
        with pytest.raises(openai.APIError):
            waiting.result(60)
    with pytest.raises(openai.APIConnectionError):
        openai_client(address).models.list()


def test_answers_are_sent_without_delay():
    with contextlib.closing(listen(0)) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_one_line():
    with contextlib.closing(listen(0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EndpointError, match=f"port {port}: .*expected a free port"):
            listen(port)
