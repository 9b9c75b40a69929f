"""The endpoint client against a server that answers anything."""

import contextlib
import json
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from unittest import mock

import anyio._backends._asyncio  # noqa: F401 (imported at the first request otherwise, which executes code)
import httpcore2  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from fuzz.guard import nothing_executes
from fuzz.mutation import ODD_TEXTS, TEXTS, damaged, mutated, mutated_json, to_text
from seeupo.errors import EndpointError
from seeupo.evaluation.endpoint import MAX_RETRY_AFTER, Endpoint, completion_text
from seeupo.types import Message

KEY = "sk-key-of-the-user"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {"b": null}]}'}}
COMPLETION = {
    "id": "x",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "tool_calls": [CALL]}}],
    "usage": {"total_tokens": 5},
}


def complete(endpoint, content):
    """Return the response of an endpoint, in a thread: tests of pages leave an event loop in the main thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(endpoint.complete, [Message("user", content)], seed=0).result()


class AnyServer:
    """A server on loopback that sends the scripted bytes, one answer per connection, and closes the connection."""

    def __init__(self) -> None:
        self.script: list[list[bytes]] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError, ValueError):
                    length = 0
                    while (line := self.rfile.readline().strip().lower()) != b"":
                        length = int(line[15:]) if line.startswith(b"content-length:") else length
                    self.rfile.read(length)
                    for part in server.script.pop(0) if server.script else ():
                        self.wfile.write(part)

        self.tcp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.tcp.daemon_threads = True
        self.address = self.tcp.server_address
        threading.Thread(target=self.tcp.serve_forever, daemon=True).start()


@cache
def any_server():
    return AnyServer()


STATUSES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 201", b"HTTP/1.1 100 Continue", b"HTTP/1.1 204 None",
        b"HTTP/1.1 302 Found", b"HTTP/1.1 303 See", b"HTTP/1.1 307 Go", b"HTTP/1.1 308 Go", b"HTTP/1.1 304 Same",
        b"HTTP/1.1 401 No", b"HTTP/1.1 407 Proxy", b"HTTP/1.1 408 Slow", b"HTTP/1.1 429 Many", b"HTTP/1.1 500 Oh",
        b"HTTP/1.1 999 ?", b"HTTP/9.9 200 OK", b"HTTP/1.1 -200 OK", b"HTTP/1.1 2e2 OK", b"ICY 200 OK", b"",
    ]
)  # fmt: skip
PORTS = ["", ":", ":0", ":80", ":99999999", ":x", ":-1"]
LOCATIONS = st.sampled_from(
    ["/", "", "//", "?", "#", "/v1/x", "http://[", "http://[::1]:x/", "ftp://a/", "file:///x", "data:,x", "a\tb"]
    + [f"{scheme}://127.0.0.1{port}/" for scheme in ("http", "https", "HTTP", "javascript") for port in PORTS]
) | TEXTS  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "-1", "+5", "1e3", "nan", "inf", "99999999999", " ", "0x10", "5, 5", "1_0", "²"])
HEADERS = st.one_of(
    st.tuples(st.just("Location"), LOCATIONS),
    st.tuples(st.sampled_from(["Retry-After", "Content-Length"]), NUMBERS),
    st.tuples(
        st.sampled_from(["Transfer-Encoding", "Content-Encoding", "Connection", "Content-Type", "WWW-Authenticate"]),
        st.sampled_from(["chunked", "CHUNKED", "gzip", "chunked, chunked", "close", "keep-alive", "Basic realm=x", ""]),
    ),
    st.tuples(ODD_TEXTS | TEXTS, ODD_TEXTS | TEXTS),
)


@st.composite
def chunked(draw, body):
    """Return a body in chunks, perhaps with wrong sizes."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        part, body = body[: draw(st.integers(1, 50))], body[50:]
        wrong = st.sampled_from([b"-1", b"", b"zz", b"f" * 30, b"5;x=y", b"0x5", b" 5", b"F" * 70_000])
        size = draw(st.just(b"%x" % len(part)) | wrong)
        parts.append(size + b"\r\n" + part + draw(st.sampled_from([b"\r\n", b"\n", b""])))
    return b"".join(parts) + draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"", b"0"]))


@st.composite
def responses(draw):
    """Return the parts of an HTTP response around a damaged completion."""
    body = draw(mutated_json(COMPLETION)).encode(errors="surrogatepass")
    status, headers = draw(STATUSES | st.just(b"HTTP/1.1 200 OK")), draw(st.lists(HEADERS, max_size=3))
    framing = draw(st.sampled_from(["length", "length", "chunked", "close"]))
    if framing == "length":
        headers.append(("Content-Length", str(len(body))))
    elif framing == "chunked":
        headers.append(("Transfer-Encoding", "chunked"))
        body = draw(chunked(body))
    lines = [f"{name}: {value}".encode(errors="surrogatepass") for name, value in headers]
    head = b"\r\n".join([status, *lines, b"", b""])
    if draw(st.booleans()):
        return [head, body]
    return [draw(damaged(head + body[:2000]))]


@given(st.lists(responses(), min_size=1, max_size=3))
def test_any_response_is_text_or_an_endpoint_error(script):
    server = any_server()
    server.script = [*script]
    pauses = []
    endpoint = Endpoint(
        url=f"http://127.0.0.1:{server.address[1]}/v1",
        model="m",
        attempts=len(script),
        first_pause_seconds=0.0,
        timeout_seconds=20.0,
        key=KEY,
    )
    with (
        mock.patch.object(endpoint._closed, "wait", pauses.append),
        nothing_executes(address=server.address),
    ):
        try:
            text = complete(endpoint, "hello")
        except EndpointError as error:
            assert KEY not in str(error)  # noqa: PT017
        else:
            assert isinstance(text, str)
    assert all(0 <= pause <= MAX_RETRY_AFTER for pause in pauses)


@given(mutated(COMPLETION, most=4))
def test_any_completion_is_text_or_a_value_error(response):
    try:
        parsed = json.loads(to_text(response))
    except (ValueError, RecursionError):
        return
    with nothing_executes():
        try:
            assert isinstance(completion_text(parsed), str)
        except ValueError:
            return


SCHEMES = st.sampled_from(["http://", "https://"])
HOSTS = st.sampled_from(["127.0.0.1", "[::1", "[]", "", "a b", "\u2100", "x" * 300, "a..b", "127.0.0.1@", "%00"])


@given(
    url=st.tuples(SCHEMES, HOSTS, st.sampled_from([*PORTS, ":1"]), ODD_TEXTS).map("".join),
    key=st.sampled_from([KEY, f"{KEY}\n", f"{KEY}\r\nX: y", f"{KEY}\u2026", f"{KEY}\ud800", "", None]),
    model=ODD_TEXTS,
    content=TEXTS | ODD_TEXTS,
)  # fmt: skip
def test_any_url_and_key_is_an_endpoint_error(url, key, model, content):
    with mock.patch("socket.getaddrinfo", side_effect=_resolve):
        try:
            complete(Endpoint(url=url, model=model, attempts=1, timeout_seconds=5.0, key=key), content)
        except EndpointError as error:
            assert KEY not in str(error)  # noqa: PT017
        else:
            raise AssertionError("there is no such server")


def _resolve(host, port, *_, **__):
    """Refuse to resolve names, without asking a name server."""
    import socket

    host = host.decode() if isinstance(host, bytes) else host
    if host != "127.0.0.1":
        host.encode("idna")
        raise socket.gaierror(f"{host} is unknown")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port % 2**16))]  # as the C library does
