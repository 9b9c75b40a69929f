"""The HTTP side of the gateway: check requests, hand calls over, and write answers as the APIs define them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from seeupo.config.model_settings import AGENT_ROLE
from seeupo.errors import EndpointError, first_line
from seeupo.rollout.gateway import anthropic_messages, chat_completions, responses
from seeupo.rollout.gateway.calls import Answer, Call, Caller, CallError, parse_body

Handler = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 2**20
BODY_SECONDS = 30.0
"""Time limit for receiving a request."""
NOTICE_STEPS = 10
"""Steps of the event loop in which it notices clients that went away before a request, which may repeat theirs."""
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

    def check(self, caller: Caller) -> None:
        """Raise CallError if the caller may not ask for anything."""

    def submit(self, call: Call, caller: Caller, *, count_only: bool = False) -> Future[Answer]:
        """Queue a call; the future raises CallError if the call cannot be answered."""

    def lose(self, answer: Future[Answer], caller: Caller) -> None:
        """Take note that the client of a call went away before it had all of the answer."""


@dataclass(frozen=True)
class GatewayApp:
    """The application: three APIs over one function that answers calls.

    Attributes:
        responder: Answers the calls, and checks their keys: bearer tokens, `x-api-key`, or part of the path.
        model: Name of the model that is listed; requests may name any.
    """

    responder: Responds
    model: str

    def routes(self) -> list[Route]:
        """Return the routes of the APIs."""
        handlers: dict[str, Handler] = {
            "models": self._models,
            "chat/completions": partial(self._answer, chat_completions),
            "responses": partial(self._answer, responses),
            "messages": partial(self._answer, anthropic_messages),
            "messages/count_tokens": self._count_tokens,
        }
        return [
            Route(f"{prefix}/v1/{path}", _checked(handle), methods=["GET" if path == "models" else "POST"])
            for prefix in ("", "/e/{key}", "/e/{key}/{agent_role}")
            for path, handle in handlers.items()
        ]

    def build(self) -> Starlette:
        """Return the application for a server."""

        async def not_found(request: Request, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            paths = ", ".join(route.path for route in self.routes() if route.path.startswith("/v1"))
            return _error(request, CallError(status, f"there is no such path; expected one of {paths}"))

        return Starlette(routes=self.routes(), exception_handlers={404: not_found, 405: not_found})

    async def _answer(self, api: ModuleType, request: Request) -> Response:
        caller, body = await self._received(request)
        call: Call = api.read(parse_body(body))
        future = self.responder.submit(call, caller)
        lose = partial(self.responder.lose, future, caller)
        if call.stream:
            return StreamingResponse(_events(api, request, future, call, lose), media_type="text/event-stream")
        return JSONResponse(api.write(await _answered(request, future, lose), call))

    async def _models(self, request: Request) -> Response:
        self.responder.check(_caller(request))
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "seeupo"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _count_tokens(self, request: Request) -> Response:
        caller, body = await self._received(request)
        call = anthropic_messages.read(parse_body(body))
        future = self.responder.submit(call, caller, count_only=True)
        answer = await _answered(request, future, partial(self.responder.lose, future, caller))
        return JSONResponse({"input_tokens": answer.prompt_tokens})

    async def _received(self, request: Request) -> tuple[Caller, bytes]:
        """Return the caller and the body of a request; the key is checked before the body is read."""
        caller = _caller(request)
        self.responder.check(caller)
        body = await _receive(request)
        for _ in range(NOTICE_STEPS):
            await asyncio.sleep(0)
        digest = hashlib.sha256(request.url.path.encode() + b"\n" + body).digest()
        return replace(caller, digest=digest), body


def _checked(handle: Handler) -> Handler:
    """Return a handler that refuses requests of web pages, and shows errors as JSON."""

    async def checked(request: Request) -> Response:
        try:
            _check_origin(request)
            return await handle(request)
        except CallError as error:
            return _error(request, error)
        except ClientDisconnect:
            return Response(status_code=499)

    return checked


def _caller(request: Request) -> Caller:
    agent_role = request.path_params.get("agent_role", "")
    if agent_role and not AGENT_ROLE.fullmatch(agent_role):
        raise CallError(400, f"role {agent_role[:80]!r}: expected up to 64 letters, digits, _ and -")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return Caller(
        key=request.path_params.get("key", bearer),
        agent_role=agent_role,
        retry=request.headers.get("x-stainless-retry-count", "0") != "0",
    )


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


async def _answered(request: Request, future: Future[Answer], lose: Callable[[], None]) -> Answer:
    """Wait for an answer; give up if the client disconnects."""
    gone = asyncio.ensure_future(_disconnected(request))
    answer = asyncio.wrap_future(future)
    either: list[asyncio.Future[Any]] = [answer, gone]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() or await request.is_disconnected():
            raise ClientDisconnect
        return await answer
    except BaseException:  # also if the server ends
        lose()
        raise
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(
    api: ModuleType, request: Request, future: Future[Answer], call: Call, lose: Callable[[], None]
) -> AsyncIterator[str]:
    """Yield the events of a stream: comments until the answer is there, then all of it."""
    answer = asyncio.wrap_future(future)
    sent = False
    try:
        while not (await asyncio.wait([answer], timeout=PING_SECONDS))[0]:
            yield ": waiting\n\n"
        for event in api.stream(await answer, call):
            yield event
        sent = not await request.is_disconnected()
    except CallError as error:  # the status has been sent
        yield f"event: error\ndata: {json.dumps({'type': 'error', 'error': {'message': error.message}})}\n\n"
    finally:
        if not sent:
            lose()


def _error(request: Request, error: CallError) -> Response:
    """Return an error in the form that the API's client shows."""
    if "/v1/messages" in request.url.path:
        kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error.message}}
    else:
        kind = OPENAI_TYPES.get(error.status, "invalid_request_error")
        body = {"error": {"message": error.message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status_code=error.status)


def listen(port: int) -> socket.socket:
    """Return a socket on loopback; port 0 is a free one."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise EndpointError(
            f"port {port}: {first_line(error)}; expected a free port. Name another one, or 0 for any free one."
        ) from None
    # Connections inherit it. asyncio does not set it on them, and without it every answer waits for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


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
