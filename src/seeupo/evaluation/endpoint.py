"""Client for the chat completions of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from seeupo.errors import EndpointError
from seeupo.types import Message

RETRIED_STATUS = (408, 409, 425, 429, 500, 502, 503, 504)
MAX_RESPONSE_BYTES = 32 * 2**20
MAX_DETAILS = 500
"""Bytes of an error's body that the message shows."""
MAX_RETRY_AFTER = 60.0
SECONDS_BETWEEN_CHECKS = 0.1
LONGEST_TOKEN = 256
"""Characters of the longest tokens in common vocabularies: runs of spaces, dashes and dots."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A model on a server.

    Attributes:
        url: Address of the API, up to and including /v1.
        model: Name of the model on the server.
        temperature: Sampling temperature; 0 means greedy.
        max_tokens: Maximum response length. A text that cannot be so few tokens is cut.
        timeout_seconds: Time limit of one request, from connecting to the last byte.
        deadline_seconds: Time limit of all attempts of a request and the pauses between them.
        attempts: Number of attempts per request. The pause between them doubles unless the server sends Retry-After.
        first_pause_seconds: Pause after the first failed attempt.
        key: API key, never written to disk; the environment variable OPENAI_API_KEY by default.
    """

    url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 512
    timeout_seconds: float = 120.0
    deadline_seconds: float = 240.0
    attempts: int = 6
    first_pause_seconds: float = 0.5
    key: str | None = field(default_factory=lambda: os.environ.get("OPENAI_API_KEY"), repr=False)

    _closed: threading.Event = field(default_factory=threading.Event, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise EndpointError(
                f"the endpoint {self.url!r} is not a URL; expected something like http://127.0.0.1:8000/v1"
            )
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise EndpointError(  # without the key itself
                "the API key contains a line break or a character that is not ASCII; expected one line of ASCII. "
                "Set the environment variable OPENAI_API_KEY again."
            )

    def complete(self, messages: Sequence[Message], *, seed: int) -> str:
        """Return the model's response to a conversation; retry temporary errors.

        The calling thread must have no running event loop.
        """
        body = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed % 2**31,
        }
        problem = ""
        deadline = time.monotonic() + self.deadline_seconds
        for attempt in range(self.attempts):
            pause = self.first_pause_seconds * 2**attempt * (1 + random.random() / 4)
            try:
                left = deadline - time.monotonic()
                response, content = asyncio.run(self._post(body, min(self.timeout_seconds, left)))
                if response.is_success:
                    return completion_text(json.loads(content))[: self.max_tokens * LONGEST_TOKEN]
                problem = f"status {response.status_code}: {_details(response, content)}"
                if response.status_code not in RETRIED_STATUS:
                    break
                pause = _retry_after(response.headers.get("Retry-After", ""), pause)
            except Exception as error:  # of many types, for odd URLs and responses
                problem = f"{type(error).__name__}: {error}"
            if attempt + 1 == self.attempts or deadline - time.monotonic() <= pause or self._closed.wait(pause):
                break
        raise EndpointError(f"{self.url} gave no completion of model {self.model!r}: {problem}")

    def close(self) -> None:
        """End all requests, which then fail, and their retries."""
        self._closed.set()

    async def _post(self, body: dict[str, Any], seconds: float) -> tuple[httpx2.Response, bytes]:
        """Return status and content of the server's answer. The time limit is for the whole request.

        Redirects are not followed: another origin must see neither the key nor the prompts.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        # Only its own limit lets the client close a connection whose TLS handshake takes too long.
        limits = httpx2.Timeout(None, connect=seconds / 2)
        content = bytearray()
        watch = asyncio.create_task(self._cancel_when_closed(asyncio.current_task()))
        try:
            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(timeout=limits) as client,
                client.stream("POST", address, content=json.dumps(body), headers=headers) as response,
            ):
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MAX_RESPONSE_BYTES:
                        raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
                    if not response.is_success and len(content) > MAX_DETAILS:
                        break
        except (TimeoutError, httpx2.TimeoutException):
            raise TimeoutError(f"the request took more than its limit of {seconds:.3g} s") from None
        except asyncio.CancelledError:
            raise ConnectionError("the evaluation has ended") from None
        finally:
            watch.cancel()
        return response, bytes(content)

    async def _cancel_when_closed(self, request: asyncio.Task[Any] | None) -> None:
        while not self._closed.is_set():
            await asyncio.sleep(SECONDS_BETWEEN_CHECKS)
        if request is not None:
            request.cancel()


def _details(response: httpx2.Response, content: bytes) -> str:
    """Return why a request failed: the target of a redirect, or the start of the body."""
    if response.is_redirect:
        return f"redirect to {response.headers.get('Location')}; name that URL"
    return content[:MAX_DETAILS].decode(errors="replace").strip() or response.reason_phrase


def _retry_after(value: str, default: float) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return default
    return min(MAX_RETRY_AFTER, seconds) if seconds >= 0 else default


def completion_text(response: Any) -> str:
    """Return the text of a chat completion, including tool calls that the server has parsed out of it."""
    try:
        message = response["choices"][0]["message"]
        text = message.get("content") or ""
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        for call in calls:
            arguments = call["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            text += f"<tool_call>{json.dumps({'name': call['name'], 'arguments': arguments})}</tool_call>"
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the response is not a chat completion ({type(error).__name__}: {error})") from None
    if not isinstance(text, str):
        raise ValueError("the content of the response is not text")
    return text
