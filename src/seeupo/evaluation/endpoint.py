"""A model behind an OpenAI-compatible server, by chat completions."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seeupo.errors import EndpointError
from seeupo.types import Message

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
LONGEST_ANSWER = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a model answers.

    Attributes:
        url: up to and including /v1.
        key: sent with each request and written nowhere; by default the environment variable OPENAI_API_KEY.
        attempts: before giving up; the pauses between them double, unless the server says how long to wait.
    """

    url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 512
    timeout_seconds: float = 120.0
    attempts: int = 6
    first_pause_seconds: float = 0.5
    key: str | None = field(default_factory=lambda: os.environ.get("OPENAI_API_KEY"), repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise EndpointError(
                f"the endpoint {self.url!r} is no address; it should look like http://127.0.0.1:8000/v1"
            )

    def complete(self, messages: Sequence[Message], *, seed: int) -> str:
        """The model's answer to a conversation."""
        body = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed % 2**31,
        }
        problem = ""
        for attempt in range(self.attempts):
            pause = self.first_pause_seconds * 2**attempt * (1 + random.random() / 4)
            try:
                return text_of(self._post(body))
            except urllib.error.HTTPError as error:
                said = error.read(500).decode(errors="replace").strip()
                problem = f"status {error.code}: {said or error.reason}"
                if error.code not in RETRIED:
                    break
                asked = error.headers.get("Retry-After", "")
                pause = min(60.0, float(asked)) if asked.replace(".", "", 1).isdigit() else pause
            except (OSError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt + 1 < self.attempts:
                time.sleep(pause)
        raise EndpointError(f"{self.url} did not answer for model {self.model!r}: {problem}")

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:
            return json.loads(answer.read(LONGEST_ANSWER))


def text_of(answer: Any) -> str:
    """What the model said. Calls that the server has taken out of the text are put back."""
    try:
        message = answer["choices"][0]["message"]
        text = message.get("content") or ""
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        for call in calls:
            arguments = call["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            text += f"<tool_call>{json.dumps({'name': call['name'], 'arguments': arguments})}</tool_call>"
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the answer is no chat completion ({type(error).__name__}: {error})") from None
    if not isinstance(text, str):
        raise ValueError("the answer's content is no text")
    return text
