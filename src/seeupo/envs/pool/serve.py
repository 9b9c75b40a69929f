"""Main program of a worker: hosts one factory with its sessions (episodes and experts) and answers requests.

It runs in the environment's own interpreter, so it may import only the standard library and modules of this package
that need nothing else. `main` exchanges JSON lines on stdin and stdout; the first request is the start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seeupo.envs.declare import Role
from seeupo.envs.options import check_options
from seeupo.envs.pool.wire import decode, encode, result_from_json, result_to_json, task_from_json, task_to_json
from seeupo.envs.references import resolve
from seeupo.errors import EnvError
from seeupo.types import Env, EnvFactory, Expert

PR_SET_PDEATHSIG = 1
CAPABILITY_VERSION = 0x20080522
LONGEST_TRACEBACK = 4000


class Host:
    """Hosts a factory and its sessions; requests and answers are JSON."""

    def __init__(self, factory: EnvFactory) -> None:
        self.factory: Any = factory  # may have the optional methods `noisy_expert`, `vocabulary` and `judge`
        self.episodes: dict[str, Any] = {}
        self.experts: dict[str, Expert] = {}
        self.requests: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "splits": lambda request: list(self.factory.splits),
            "tasks": lambda request: [task_to_json(task) for task in self.factory.tasks(request["split"])],
            "reset": self.reset,
            "step": lambda request: result_to_json(self.episodes[request["session"]].step(request["text"])),
            "score": lambda request: self.episodes[request["session"]].score(),
            "save": lambda request: self.episodes[request["session"]].save(),
            "judge": lambda request: self.factory.judge(task_from_json(request["task"]), request["saved"]),
            "vocabulary": lambda request: (
                list(self.factory.vocabulary()) if hasattr(self.factory, "vocabulary") else []
            ),
            "expert": self.start_expert,
            "advise": lambda request: self.experts[request["session"]](result_from_json(request["result"])),
            "close": self.close,
        }

    def handle(self, request: Mapping[str, Any]) -> Any:
        """Return the answer to one request. Exceptions of the environment propagate."""
        return self.requests[request["op"]](request)

    def reset(self, request: Mapping[str, Any]) -> dict[str, Any]:
        env: Env = self.factory.make()
        result = env.reset(task_from_json(request["task"]), seed=request["seed"])
        self.episodes[request["session"]] = env
        return result_to_json(result)

    def start_expert(self, request: Mapping[str, Any]) -> bool:
        task, mistakes = task_from_json(request["task"]), request["mistakes"]
        if mistakes is None:
            expert = self.factory.expert(task)
        elif hasattr(self.factory, "noisy_expert"):
            expert = self.factory.noisy_expert(task, seed=mistakes["seed"], rates=mistakes["rates"])
        else:
            raise EnvError(f"{type(self.factory).__name__} has no noisy expert; set warm_start.noisy = 0")
        if expert is not None:
            self.experts[request["session"]] = expert
        return expert is not None

    def close(self, request: Mapping[str, Any]) -> None:
        self.experts.pop(request["session"], None)
        if (env := self.episodes.pop(request["session"], None)) is not None:
            env.close()


def load_factory(reference: str, options: Mapping[str, Any]) -> EnvFactory:
    """Create the factory that a reference names, with options that are checked against its signature."""
    factory = resolve(reference, Role.FACTORY)
    check_options(factory, options)
    made: EnvFactory = factory(**options)
    return made


@dataclass
class Channel:
    """File descriptors of the protocol, separate from stdin and stdout, which the environment may use."""

    source: int
    sink: int

    @staticmethod
    def take() -> Channel:
        """Move the protocol away from stdin and stdout; prints, also of C code and children, go to stderr."""
        channel = Channel(source=os.dup(0), sink=os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return channel

    def send(self, message: Mapping[str, Any]) -> None:
        rest = memoryview(encode(message))
        while rest:
            rest = rest[os.write(self.sink, rest) :]


def drop_capabilities() -> None:
    """Clear the inheritable capabilities too, which remain when root changes to another user."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def restrict(limits: Mapping[str, int | None], *, user: int | None) -> None:
    """Drop privileges and set the limits of this process and its children. None leaves a limit unchanged."""
    import resource  # Unix only

    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        drop_capabilities()
    kinds = {
        "memory_bytes": resource.RLIMIT_AS,
        "cpu_seconds": resource.RLIMIT_CPU,
        "file_bytes": resource.RLIMIT_FSIZE,
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
    }
    for name, kind in kinds.items():
        if (limit := limits.get(name)) is not None:
            _, most = resource.getrlimit(kind)
            value = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def error_of(error: BaseException) -> dict[str, str]:
    """Return an exception as an answer: its category, and the end of its traceback."""
    match error:
        case MemoryError():
            return {"error": "memory", "text": "the memory limit was reached"}
        case RecursionError():
            return {"error": "recursion", "text": "the recursion limit was reached"}
        case SystemExit():
            return {"error": "exit", "text": f"the process was asked to exit ({error.code!r})"}
        case EnvError():
            return {"error": "usage", "text": str(error)}
    lines = "".join(traceback.format_exception(error))
    return {"error": "raised", "text": lines[-LONGEST_TRACEBACK:]}


def answer(host: Host, request: Mapping[str, Any], channel: Channel) -> None:
    try:
        channel.send({"id": request["id"], "value": host.handle(request)})
    except BaseException as error:  # an environment may raise anything; the trainer decides how to react
        channel.send({"id": request["id"], **error_of(error)})


def main() -> None:
    channel = Channel.take()
    with os.fdopen(channel.source, "rb") as requests:
        start = decode(requests.readline())
        if start["dies_with_parent"]:
            # Without a sandbox: a hanging worker must not outlive a trainer that was killed.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            restrict(start["limits"], user=start["user"])
            sys.path += start["projects"]  # at the end, so that a project cannot hide installed packages
            host = Host(load_factory(start["factory"], start["options"]))
        except BaseException as error:  # reported instead of a bare exit code
            channel.send({"id": start["id"], **error_of(error)})
            sys.exit(1)
        channel.send({"id": start["id"], "value": None})
        for line in requests:
            answer(host, decode(line), channel)
