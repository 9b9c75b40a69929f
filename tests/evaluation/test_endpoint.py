import contextlib
import gc
import json
import socket
import socketserver
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from rollout.worlds import EchoFactory
from seeupo.cli import main
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EndpointError
from seeupo.evaluation.endpoint import Endpoint, completion_text
from seeupo.evaluation.policies import endpoint_policy
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.template import REMINDER
from seeupo.types import Message


class Server:
    """A server on loopback with scripted responses: status and body per request; the last one is repeated.

    Responses wait for the event `responding`.
    """

    def __init__(self, *script):
        self.script, self.requests, self.lock = list(script), [], threading.Lock()
        self.responding = threading.Event()
        self.responding.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append((self.path, dict(self.headers), body))
                    status, answer = server.script[0] if len(server.script) == 1 else server.script.pop(0)
                server.responding.wait(60)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                with contextlib.suppress(OSError):  # the client may have closed the connection
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_): ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def completion(text, **more):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text, **more}}]}


def complete(server, text="hello", **options):
    """Send a request in a thread, as evaluations do: a browser of another test has an event loop in this one."""
    endpoint = Endpoint(url=server.url, model="m", first_pause_seconds=0.001, **options)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(endpoint.complete, [Message("user", text)], seed=2**40 + 3).result()


def test_request_has_the_messages_and_parameters():
    with Server(completion("hi")) as server:
        assert complete(server, temperature=0.5, max_tokens=7, key="secret") == "hi"
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["temperature"], body["max_tokens"], body["model"], body["seed"]) == (0.5, 7, "m", 3 + 2**40 % 2**31)
    assert "secret" not in repr(Endpoint(url=server.url, model="m", key="secret"))


def test_temporary_errors_are_retried():
    trouble = [(429, {}), (503, b"busy"), (200, b"rubbish"), (200, {"choices": []}), (200, {"choices": [{}]})]
    with Server(*trouble, completion("at last")) as server:
        assert complete(server) == "at last"
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("script", "requests", "message"),
    [
        ((429, b"slow down"), 3, "status 429: slow down"),
        ((200, b"rubbish"), 3, "JSONDecodeError"),
        ((200, {"choices": [{"message": {"content": 5}}]}), 3, "content of the response is not text"),
        ((401, b"wrong key"), 1, "status 401: wrong key"),
    ],
)
def test_permanent_errors_are_raised(script, requests, message):
    with Server(script) as server, pytest.raises(EndpointError, match=message):
        complete(server, attempts=3)
    assert len(server.requests) == requests


def test_slow_server_times_out():
    with Server(completion("too late")) as server:
        server.responding.clear()
        with pytest.raises(EndpointError, match="took more than"):
            complete(server, attempts=2, timeout_seconds=0.05)
        server.responding.set()


def test_unreachable_server_is_reported():
    with Server(completion("x")) as server:
        pass
    with pytest.raises(EndpointError, match="no completion of model 'm'"):
        complete(server, attempts=2)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", "http://[/v1", "http://a b/v1"])
def test_urls_that_cannot_be_used_are_endpoint_errors(url):
    with pytest.raises(EndpointError, match="gave no completion"):
        complete(SimpleNamespace(url=url), attempts=1)


def test_parsed_tool_calls_become_text_again():
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}, {"function": {"name": "g", "arguments": {}}}]
    text = completion_text({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    first, second = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
    assert text == f"<tool_call>{first}</tool_call><tool_call>{second}</tool_call>"


def test_conversation_has_no_thoughts_and_one_reminder():
    with Server(completion("<think>why</think>because")) as server, EnvPool(EchoFactory()) as pool:
        endpoint = Endpoint(url=server.url, model="m")
        with endpoint_policy(pool, endpoint, 3, reasoning=True, concurrency=2) as policy:
            (episode,) = list(policy.run(group_attempts(pool.tasks("train")[2:3], 1, seed=0)))
    assert (episode.score, episode.turns) == (1.0, 3)
    messages = server.requests[-1][2]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in messages if message["role"] == "assistant"] == ["because"] * 2
    assert messages[-1]["content"] == f"7 letters at step 2\n{REMINDER}"
    assert sum(REMINDER in message["content"] for message in messages) == 1


def test_error_keeps_finished_attempts_and_the_key_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "very-secret")
    monkeypatch.setattr("seeupo.evaluation.endpoint.RETRIED_STATUS", ())
    out = tmp_path / "r.json"
    # The server breaks after eight requests.
    with Server(*[completion("done")] * 8, (500, b"broken")) as server:
        arguments = ["eval", "--env", "pocket", "--endpoint", server.url, "--model", "m", "--tasks", "20",
                     "--attempts", "1", "-k", "1", "--concurrency", "1", "--out", str(out)]  # fmt: skip
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1
        assert "status 500: broken" in done.output
        assert "are kept in" in done.output
        kept = json.loads(out.read_text())
        assert 0 < len(kept["episodes"]) < 20
        server.script[:] = [completion("done")]
        done = CliRunner().invoke(main, [*arguments, "--resume"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(out.read_text())["episodes"]) == 20
    assert "very-secret" not in out.read_text() + done.output
    assert server.requests[0][1]["Authorization"] == "Bearer very-secret"


def test_requests_are_concurrent():
    """Two requests wait for each other, which sequential requests would never do."""
    barrier = threading.Barrier(2, timeout=60)

    class Meeting(Endpoint):
        def complete(self, messages, *, seed):
            barrier.wait()
            return "done"

    endpoint = Meeting(url="http://localhost/v1", model="m")
    with EnvPool(EchoFactory()) as pool, endpoint_policy(pool, endpoint, 1, reasoning=True, concurrency=2) as policy:
        assert len(list(policy.run(group_attempts(pool.tasks("train")[:4], 1, seed=0)))) == 4


class RawServer:
    """A server on loopback that answers each connection with the same bytes, or with those that a generator yields."""

    def __init__(self, answer) -> None:
        self.answer, self.requests = answer, []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                head = []
                while (line := self.rfile.readline().strip()) != b"":
                    head.append(line.decode())
                server.requests.append(head)
                with contextlib.suppress(OSError):
                    for part in [server.answer] if isinstance(server.answer, bytes) else server.answer():
                        self.wfile.write(part)

        self.tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.tcp.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.tcp.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.tcp.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.tcp.shutdown()
        self.tcp.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_refused_and_carry_no_key(status):
    with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as other:
        location = f"Location: {other.url}/chat/completions"
        redirect = f"HTTP/1.1 {status} Go\r\n{location}\r\nContent-Length: 0\r\n\r\n".encode()
        with RawServer(redirect) as server, pytest.raises(EndpointError, match="redirect to"):
            complete(server, attempts=2, key="secret")
        assert other.requests == []


def test_the_body_of_a_redirect_is_not_read():
    def endless():
        yield b"HTTP/1.1 302 Go\r\nLocation: /v1/elsewhere\r\n\r\n"
        for _ in range(10_000):
            sent.append(1)
            yield b"x" * 100_000

    sent = []
    with RawServer(endless) as server, pytest.raises(EndpointError, match="redirect to"):
        complete(server, attempts=1)
    assert len(sent) < 1000


@pytest.mark.parametrize("key", ["secret\n", "secret\r\nX: y", "secret…", "secret\ud800", "\x1bsecret"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key):
    with pytest.raises(EndpointError, match="API key contains") as raised:
        Endpoint(url="http://127.0.0.1:1/v1", model="m", key=key)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 999999 what\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"choices": [{"message": {"tool_calls": [{"function": {"name": 1, "arguments": "['
        + b"[" * 100_000
        + b'"}}]}}]}',
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
    ],
    ids=[
        "nothing",
        "no status",
        "status",
        "headers",
        "long header",
        "chunk",
        "short",
        "nested",
        "arguments",
        "encoding",
    ],
)
def test_malformed_responses_are_retried_and_then_an_endpoint_error(answer):
    with RawServer(answer) as server:
        with pytest.raises(EndpointError, match="gave no completion"):
            complete(server, attempts=2)
        assert len(server.requests) == 2


ANSWER = b'HTTP/1.1 200 OK\r\nX: y\r\n\r\n{"choices": [{"message": {"content": "hi"}}]}'


@pytest.mark.parametrize(
    "parts",
    [
        [ANSWER[:5], *[b""] * 100, ANSWER[5:]],
        [ANSWER[:20], *[b"y"] * 100, ANSWER[20:]],
        [*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 100, ANSWER],
        [ANSWER[:27], *[b" "] * 100, ANSWER[27:]],
        [b"HTTP/1.1 500 Broken\r\n\r\n", *[b"y"] * 100],
    ],
    ids=["stalled status", "headers", "1xx", "body", "body of an error"],
)
def test_a_response_that_drips_is_ended_by_the_deadline(parts):
    """Each part arrives in time, but all of them take ten times as long as the request may."""

    def drip():
        for part in parts:
            yield part
            time.sleep(0.03)

    with RawServer(drip) as server, pytest.raises(EndpointError, match=r"took more than its limit of 0\.3 s"):
        complete(server, attempts=1, timeout_seconds=0.3)


def test_a_server_that_reads_nothing_is_ended_by_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match="took more than"):
            complete(SimpleNamespace(url=url), "x" * 2**25, attempts=1, timeout_seconds=0.3)


def test_a_server_that_never_answers_the_tls_handshake_is_ended_by_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match="took more than"):
            complete(SimpleNamespace(url=url), attempts=1, timeout_seconds=1)
    with warnings.catch_warnings():  # on a very busy machine the connection is left to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_large_responses_are_refused(monkeypatch):
    monkeypatch.setattr("seeupo.evaluation.endpoint.MAX_RESPONSE_BYTES", 1000)
    with Server(completion("x" * 2000)) as server, pytest.raises(EndpointError, match="more than 1000 bytes"):
        complete(server, attempts=1)


COMPLETE = b'{"choices": [{"message": {"content": "hi"}}]}'


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + COMPLETE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(COMPLETE), COMPLETE),
        b"HTTP/1.1 200 OK\r\n\r\n" + COMPLETE[:-1],
    ],
    ids=["length", "chunked", "close"],
)
def test_a_body_that_ends_early_is_a_failure(answer):
    with RawServer(answer) as server, pytest.raises(EndpointError, match="gave no completion"):
        complete(server, attempts=2)


def test_a_text_is_cut_at_what_its_number_of_tokens_can_mean():
    call = {"function": {"name": "f", "arguments": {"a": "y" * 5000}}}
    with Server(completion("x" * 5000), completion("", tool_calls=[call]), completion("x" * 2560)) as server:
        assert complete(server, max_tokens=10) == "x" * 2560
        assert len(complete(server, max_tokens=10)) == 2560
        assert complete(server, max_tokens=10) == "x" * 2560


def test_all_attempts_together_have_a_deadline():
    with Server(completion("too late")) as server:
        server.responding.clear()
        with pytest.raises(EndpointError, match="took more than"):
            complete(server, attempts=1000, timeout_seconds=0.05, deadline_seconds=0.3)
        server.responding.set()


def test_a_long_pause_that_the_server_asks_for_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr("seeupo.evaluation.endpoint._retry_after", lambda value, default: 1000.0)
    with Server((429, b"later")) as server, pytest.raises(EndpointError, match="status 429: later"):
        complete(server, attempts=5, deadline_seconds=100)
    assert len(server.requests) == 1


def test_a_dead_endpoint_ends_the_requests_that_wait_for_it():
    """One request is refused; the others, in their own threads, would wait and be repeated for minutes."""
    arrivals = iter(range(3))

    class Refusing(Endpoint):
        def complete(self, messages, *, seed):
            if next(arrivals) < 2:
                return super().complete(messages, seed=seed)
            raise EndpointError("refused")

    before = set(threading.enumerate())
    with Server(completion("late")) as server, EnvPool(EchoFactory()) as pool:
        server.responding.clear()
        attempts = group_attempts(pool.tasks("train")[:3], 1, seed=0)
        endpoint = Refusing(url=server.url, model="m", deadline_seconds=10_000, timeout_seconds=10_000)
        policies = endpoint_policy(pool, endpoint, 3, reasoning=True, concurrency=3)
        with pytest.raises(EndpointError, match="refused"), policies as policy:
            list(policy.run(attempts))
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("endpoint"):
                thread.join(60)
                assert not thread.is_alive()
        server.responding.set()
