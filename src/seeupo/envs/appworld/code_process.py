"""Process of an episode that runs model code. It has no database: its APIs are calls to the process of the apps.

AppWorld's own classes execute the code, check it and format its output. Only what opens databases is replaced.
"""

from __future__ import annotations

import json
import socket
from base64 import b64decode, b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seeupo.envs.appworld.landlock import hide

EXPERIMENT = "episode"


class CallApps:
    """Transport of an `httpx` client that sends each request to the process of the apps, in a separate connection.

    A time limit may interrupt a call at any point, so that a shared connection would mix up answers.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def handle_request(self, request: Any) -> Any:
        import httpx

        call = {
            "method": request.method,
            "path": request.url.raw_path.decode("ascii"),
            "headers": request.headers.multi_items(),
            "body": b64encode(request.read()).decode(),
        }
        answer = self._exchange(json.dumps(call).encode())
        if "error" in answer:
            module, name, message = answer["error"]
            raise type(name, (Exception,), {"__module__": module})(message)
        return httpx.Response(answer["status"], headers=answer["headers"], content=b64decode(answer["body"]))

    def _exchange(self, call: bytes) -> dict[str, Any]:
        received = bytearray()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.address)
            connection.sendall(call)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 20):
                received += chunk
        if not received:
            raise ConnectionError("the apps do not answer this call")
        answer: dict[str, Any] = json.loads(received)
        return answer


def make_world(task_id: str, *, address: str, execution_seconds: int) -> Any:
    """Return AppWorld's environment with stubs for everything that opens a database."""
    import appworld.requester
    from appworld.collections.models import ModelCollection
    from appworld.environment import AppWorld
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    client = TestClient(FastAPI())
    client._transport = CallApps(address)
    ModelCollection.load = lambda **_: SimpleNamespace(from_db_home_path="")
    appworld.requester.set_local_dbs = lambda *_, **__: None
    appworld.requester.Requester._get_client = lambda _: client
    AppWorld._save_state = lambda *_: None
    return AppWorld(task_id, experiment_name=EXPERIMENT, load_ground_truth=False, timeout_seconds=execution_seconds)


def serve(task_id: str, engine: socket.socket, *, address: str, execution_seconds: int, hidden: Path | None) -> None:
    """Run code until killed: each line from the engine process is JSON of code, each answer a line of JSON.

    Args:
        engine: First gets an empty answer, when the code can be run.
        address: Socket of the process of the apps.
        hidden: Folder with the databases, which this process must not read.
    """
    world = make_world(task_id, address=address, execution_seconds=execution_seconds)
    if hidden is not None:
        hide(hidden)
    engine.sendall(b"{}\n")
    with engine.makefile("rb") as requests:
        for line in requests:
            engine.sendall(execute(world, json.loads(line)) + b"\n")


def execute(world: Any, code: str) -> bytes:
    """Return what the code printed or raised, as AppWorld shows it; an empty answer if it cannot be encoded."""
    try:
        return json.dumps({"output": world.execute(code)}, ensure_ascii=False).encode()
    except Exception:
        return b"{}"
