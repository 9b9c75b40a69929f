"""HTTP with one deadline for a whole request: connecting, TLS, sending, headers, body and redirects.

The standard library limits each socket operation, so a server that sends one byte at a time is never too slow. Here
every operation gets the time that is left. Only name resolution keeps the limit of the system.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from functools import partial
from typing import Any

SEND_BYTES = 2**14
"""Largest TLS record: a larger write is several operations."""


class Deadline:
    """A point in time that is `seconds` after its creation."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, or raise `TimeoutError`."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the request took more than {self.seconds:g} s")
        return left


class TimedReader(io.RawIOBase):
    """The bytes that a socket receives before the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._raw, self._deadline = sock, sock.makefile("rb", buffering=0), deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedResponse(http.client.HTTPResponse):
    """A response that is read before the deadline."""

    def __init__(self, sock: socket.socket, *args: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(TimedReader(sock, deadline))


class TimedConnection(http.client.HTTPConnection):
    """A connection that is used before the deadline."""

    def __init__(self, *args: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = deadline
        self._create_connection = partial(_connect, deadline)
        self.response_class = partial(TimedResponse, deadline=deadline)  # type: ignore[assignment]

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        for start in range(0, len(data), SEND_BYTES):
            self.sock.settimeout(self._deadline.left())
            super().send(data[start : start + SEND_BYTES])


class TimedSecureConnection(TimedConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class TimedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens every URL before one deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(TimedConnection, deadline=self._deadline), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(TimedSecureConnection, deadline=self._deadline), req)


def _connect(deadline: Deadline, address: tuple[str, int], *_: object) -> socket.socket:
    """Connect to the first address of a host that accepts, as `socket.create_connection` does."""
    problem = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _name, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left())
            sock.connect(place)
            sock.settimeout(deadline.left())  # for the TLS handshake, which is one operation
            return sock
        except OSError as error:
            sock.close()
            problem = error
    raise problem
