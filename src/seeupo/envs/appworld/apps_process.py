"""Process of an episode that owns the apps and their databases, and never runs model code.

It answers two parties. The process that runs model code sends API calls to a socket, each in a connection of its own;
everything in them is hostile. The engine process asks for the state over a pair of sockets that no other process has.
"""

from __future__ import annotations

import json
import select
import socket
from base64 import b64decode, b64encode
from typing import Any

LARGEST_CALL = 16 * 2**20
LARGEST_STATE = 12 * 2**20
CALL_SECONDS = 10.0
SERVER = "http://testserver"


class Apps:
    """The apps of one task, with the databases in memory.

    Attributes:
        description: What the first messages of the episode need to know about the task.
    """

    def __init__(self, task_id: str) -> None:
        from appworld.apps.model_lib import get_db_home_path
        from appworld.collections.models import ModelCollection
        from appworld.common.constants import DB_VERSION
        from appworld.requester import Requester
        from appworld.task import Task

        task = Task.load(task_id=task_id, load_ground_truth=False)
        if task.db_version != DB_VERSION:
            raise ValueError(f"the databases have version {task.db_version}; the engine needs {DB_VERSION}")
        places = {
            "to_db_home_path": get_db_home_path(storage_type="memory", type="task_output", task_id=task_id),
            "from_db_home_path": task.models_from_db_home_path,
        }
        ModelCollection.load(**places, load_apps=task.allowed_apps)
        # The requester opens the databases for the APIs, sets the task's date and seeds the random numbers.
        self.client = Requester(**places, date_and_time=task.datetime, load_apps=task.allowed_apps).client
        self.names = [*task.allowed_apps, "admin"]
        self.description = {
            "instruction": task.instruction,
            "datetime": task.datetime.isoformat(),
            "supervisor": {
                name: task.supervisor[name] for name in ("first_name", "last_name", "email", "phone_number")
            },
        }
        self.at_start = {app: len(self._changes(app)) for app in self.names}
        self._remove_private_apis()
        self._refuse_forged_tokens()

    def call(self, request: Any) -> dict[str, Any]:
        """Return the response to an API call, or the exception that it raised."""
        import httpx

        sent = httpx.Request(
            request["method"],
            SERVER + request["path"],
            headers=[(name, value) for name, value in request["headers"]],
            content=b64decode(request["body"]),
        )
        if sent.url.host != "testserver":
            raise ValueError("the path is not a path")
        try:
            response = self.client._transport.handle_request(sent)
        except Exception as error:  # an error in an app, which the caller sees as before
            return {"error": [type(error).__module__, type(error).__qualname__, str(error)]}
        return {
            "status": response.status_code,
            "headers": response.headers.multi_items(),
            "body": b64encode(response.read()).decode(),
        }

    def state(self) -> dict[str, Any]:
        """Return whether the task is completed, and each app's changes since the start as lines of JSON."""
        import orjson
        from appworld.apps.supervisor.constants import TASK_STATUS_LITERAL
        from appworld.common.utils import get_type_args

        changes = {
            app: [orjson.dumps(change).decode() for change in added]
            for app in self.names
            if (added := self._changes(app)[self.at_start[app] :])
        }
        if sum(len(line) for lines in changes.values() for line in lines) > LARGEST_STATE:
            return {"error": f"the changes have more than {LARGEST_STATE} characters"}
        task = self.client.get("/supervisor/active_task").json()
        return {"completed": task["status"] in get_type_args(TASK_STATUS_LITERAL), "changes": changes}

    def _changes(self, app: str) -> list[Any]:
        """Return the statements that have changed an app's database, as AppWorld's engine records them."""
        from appworld.common.utils import import_models_module

        changes: list[Any] = import_models_module(app).SQLModel.db.tracker.changes
        return changes

    def _remove_private_apis(self) -> None:
        """Keep only the documented APIs of the apps: no loading of databases, no clock, no administration."""
        from appworld.common.utils import get_name_to_apis, import_apis_module
        from starlette.routing import Mount

        main = self.client.app.router
        main.routes[:] = [route for route in main.routes if isinstance(route, Mount) and route.path != "/admin"]
        for app in self.names:
            public = list(get_name_to_apis(app, ignore_private_apis=True).values())
            router = import_apis_module(app).app.router
            router.routes[:] = [route for route in router.routes if getattr(route, "endpoint", None) in public]

    def _refuse_forged_tokens(self) -> None:
        """Accept only access tokens that a login has returned: AppWorld signs them with a key that anyone knows."""
        from appworld.common.utils import import_apis_module

        for app in self.names:
            manager = getattr(import_apis_module(app), "logging_manager", None)
            if manager is not None:
                accept_issued_tokens_only(manager)


def accept_issued_tokens_only(manager: Any) -> None:
    """Change the login manager of an app to remember its tokens and to know no others."""
    create, read = manager.create_access_token, manager._get_payload
    issued: set[str] = set()

    def create_access_token(**options: Any) -> str:
        token: str = create(**options)
        issued.add(token)
        return token

    def get_payload(token: str) -> Any:
        if token not in issued:
            raise manager.not_authenticated_exception
        return read(token)

    manager.create_access_token, manager._get_payload = create_access_token, get_payload


def serve(task_id: str, engine: socket.socket, calls: socket.socket) -> None:
    """Load a task, describe it, and answer the engine process and API calls until killed."""
    try:
        apps = Apps(task_id)
    except Exception as error:
        send(engine, {"error": f"{type(error).__name__}: {error}"})
        return
    send(engine, apps.description)
    while True:
        ready, _, _ = select.select([engine, calls], [], [])
        if engine in ready:
            if not engine.recv(1):
                return
            send(engine, apps.state())
        else:
            connection, _ = calls.accept()
            with connection:
                answer(apps, connection)


def send(engine: socket.socket, answer: dict[str, Any]) -> None:
    engine.sendall(json.dumps(answer).encode() + b"\n")


def answer(apps: Apps, connection: socket.socket) -> None:
    """Answer one API call. Messages that are not calls get no answer."""
    try:
        connection.settimeout(CALL_SECONDS)
        connection.sendall(json.dumps(apps.call(json.loads(receive(connection)))).encode())
    except Exception:
        return


def receive(connection: socket.socket) -> bytes:
    """Return all that is sent, up to the limit."""
    received = bytearray()
    while chunk := connection.recv(1 << 20):
        received += chunk
        if len(received) > LARGEST_CALL:
            raise ValueError("the call is too large")
    return bytes(received)
