"""The HTTP side of the gateway: check requests, hand calls over, and write answers as the APIs define them."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from seeupo.errors import EndpointError, first_line
from seeupo.rollout.gateway import anthropic_messages, chat_completions, responses
from seeupo.rollout.gateway.calls import Answer, Call, CallError, parse_body

MAX_BODY_BYTES = 2**20
BODY_SECONDS = 30.0
"""Time limit for receiving a request."""
MAX_CONNECTIONS = 1024
KEEP_ALIVE_SECONDS = 30
PING_SECONDS = 10.0
"""Time between comments in a stream that waits for its answer."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OPENAI_TYPES: Mapping[int, str] = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error"}
ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "api_error",
}


class Responds(Protocol):
    """Answers calls from another thread."""

    def submit(self, call: Call, *, count_only: bool = False) -> Future[Answer]: ...


@dataclass(frozen=True)
class GatewayApp:
    """The application: three APIs over one function that answers calls.

    Attributes:
        responder: Answers the calls.
        model: Name of the model that is listed; requests may name any.
        key: Key that every request must have, as a bearer token or `x-api-key`; None for no key.
    """

    responder: Responds
    model: str
    key: str | None = None

    def routes(self) -> list[Route]:
        """Return the routes of the APIs."""
        return [
            Route("/v1/models", self._checked(self._models), methods=["GET"]),
            Route("/v1/chat/completions", self._api(chat_completions), methods=["POST"]),
            Route("/v1/responses", self._api(responses), methods=["POST"]),
            Route("/v1/messages", self._api(anthropic_messages), methods=["POST"]),
            Route("/v1/messages/count_tokens", self._checked(self._count_tokens), methods=["POST"]),
        ]

    def build(self) -> Starlette:
        """Return the application for a server."""

        async def not_found(request: Request, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            paths = ", ".join(route.path for route in self.routes())
            return _error(request, CallError(status, f"{request.method} {request.url.path}: expected one of {paths}"))

        return Starlette(routes=self.routes(), exception_handlers={404: not_found, 405: not_found})

    def _checked(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that refuses requests of other origins and without the key, and shows errors as JSON."""

        async def checked(request: Request) -> Response:
            try:
                _check_origin(request)
                self._check_key(request)
                return await handle(request)
            except CallError as error:
                return _error(request, error)
            except ClientDisconnect:
                return Response(status_code=499)

        return checked

    def _api(self, api: ModuleType) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            call = api.read(parse_body(await _receive(request)))
            future = asyncio.wrap_future(self.responder.submit(call))
            if call.stream:
                return StreamingResponse(_events(api, future, call), media_type="text/event-stream")
            return JSONResponse(api.write(await _answered(request, future), call))

        return self._checked(handle)

    async def _models(self, request: Request) -> Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "seeupo"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _count_tokens(self, request: Request) -> Response:
        call = anthropic_messages.read(parse_body(await _receive(request)))
        answer = await asyncio.wrap_future(self.responder.submit(call, count_only=True))
        return JSONResponse({"input_tokens": answer.prompt_tokens})

    def _check_key(self, request: Request) -> None:
        if self.key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            raise CallError(401, "the API key is missing or wrong")


def _check_origin(request: Request) -> None:
    """Refuse what a web page sends: another host name in the address, or an origin."""
    host = request.headers.get("host", "")
    if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
        raise CallError(403, f"host {host[:80]!r}: expected {', '.join(LOOPBACK)}")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise CallError(403, "requests of web pages are refused")


async def _receive(request: Request) -> bytes:
    """Return the body of a request, within its limits."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise CallError(413, f"the body has more than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise CallError(408, f"the body did not arrive in {BODY_SECONDS:g} s") from None
    return bytes(body)


async def _answered(request: Request, future: asyncio.Future[Answer]) -> Answer:
    """Wait for an answer; give up if the client disconnects."""
    gone = asyncio.ensure_future(_disconnected(request))
    either: list[asyncio.Future[Any]] = [future, gone]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            future.cancel()
            raise ClientDisconnect
        return await future
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(api: ModuleType, future: asyncio.Future[Answer], call: Call) -> AsyncIterator[str]:
    """Yield the events of a stream: comments until the answer is there, then all of it."""
    try:
        while not (await asyncio.wait([future], timeout=PING_SECONDS))[0]:
            yield ": waiting\n\n"
        for event in api.stream(await future, call):
            yield event
    except CallError as error:  # the status has been sent
        yield f"event: error\ndata: {json.dumps({'type': 'error', 'error': {'message': error.message}})}\n\n"
    finally:
        future.cancel()


def _error(request: Request, error: CallError) -> Response:
    """Return an error in the form that the API's client shows."""
    if request.url.path.startswith("/v1/messages"):
        kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error.message}}
    else:
        kind = OPENAI_TYPES.get(error.status, "invalid_request_error")
        body = {"error": {"message": error.message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status_code=error.status)


def listen(port: int) -> socket.socket:
    """Return a socket on loopback; port 0 is a free one."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise EndpointError(
            f"port {port}: {first_line(error)}; expected a free port. Name another one, or 0 for any free one."
        ) from None


@contextmanager
def serving(app: GatewayApp, listener: socket.socket) -> Iterator[str]:
    """Serve an application in a thread, and yield the address of its APIs up to /v1."""
    server = uvicorn.Server(
        uvicorn.Config(
            app.build(),
            log_level="error",  # an access log would contain keys
            access_log=False,
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
        )
    )
    thread = threading.Thread(target=server.run, args=([listener],), name="gateway", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        server.force_exit = True  # calls without an answer are closed
        thread.join()
