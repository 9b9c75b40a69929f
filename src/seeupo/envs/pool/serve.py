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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from seeupo.envs.contract import Contract, ContractError
from seeupo.envs.declare import Role
from seeupo.envs.options import check_options
from seeupo.envs.pool.wire import WireError, decode, encode, from_json, to_json
from seeupo.envs.references import resolve
from seeupo.envs.tracebacks import explain_exception
from seeupo.errors import EnvError, UserError
from seeupo.protocols import EnvFactory, Expert
from seeupo.types import StepResult, Task

PR_SET_PDEATHSIG = 1
CAPABILITY_VERSION = 0x20080522


class Host:
    """Hosts a factory and its sessions; requests and answers are JSON."""

    def __init__(self, factory: EnvFactory) -> None:
        self.factory: Any = factory  # may have more: `noisy_expert`, `vocabulary`, `judge` ...
        self.episodes: dict[str, Any] = {}
        self.experts: dict[str, Expert] = {}

    def handle(self, request: Mapping[str, Any]) -> Any:
        """Return the answer to one request: the method that its "op" names. Exceptions of the environment propagate."""
        return getattr(self, request["op"])(request)

    def splits(self, request: Mapping[str, Any]) -> list[str]:
        return Contract("splits", None).splits(self.factory.splits)

    def separate_step_rewards(self, request: Mapping[str, Any]) -> bool:
        declared = getattr(self.factory, "separate_step_rewards", False)
        return Contract("separate_step_rewards", None).separate_step_rewards(declared)

    def count_tasks(self, request: Mapping[str, Any]) -> int:
        declared = getattr(self.factory, "task_counts", None)
        return len(self.tasks(request)) if declared is None else int(declared[request["split"]])

    def tasks(self, request: Mapping[str, Any]) -> Any:
        return to_json(Contract("tasks", self.factory.tasks).tasks(self.factory.tasks(request["split"])))

    def reset(self, request: Mapping[str, Any]) -> Any:
        scored = "save" if hasattr(self.factory, "judge") else "score"
        env = Contract("make", self.factory.make).environment(self.factory.make(), ("reset", "step", scored, "close"))
        result = env.reset(from_json(Task, request["task"], "task"), seed=request["seed"])
        self.episodes[request["session"]] = env
        return to_json(Contract("reset", env.reset).result(result))

    def step(self, request: Mapping[str, Any]) -> Any:
        step = self.episodes[request["session"]].step
        return to_json(Contract("step", step).result(step(request["text"])))

    def score(self, request: Mapping[str, Any]) -> float:
        score = self.episodes[request["session"]].score
        return Contract("score", score).score(score())

    def save(self, request: Mapping[str, Any]) -> Any:
        save = self.episodes[request["session"]].save
        return Contract("save", save).json(save())

    def judge(self, request: Mapping[str, Any]) -> float:
        judge = self.factory.judge
        return Contract("judge", judge).score(judge(from_json(Task, request["task"], "task"), request["saved"]))

    def vocabulary(self, request: Mapping[str, Any]) -> list[str]:
        if not hasattr(self.factory, "vocabulary"):
            return []
        return Contract("vocabulary", self.factory.vocabulary).words(self.factory.vocabulary())

    def has_noisy_expert(self, request: Mapping[str, Any]) -> bool:
        return hasattr(self.factory, "noisy_expert")

    def advise(self, request: Mapping[str, Any]) -> str:
        expert = self.experts[request["session"]]
        return Contract("expert", expert).action(expert(from_json(StepResult, request["result"], "result")))

    def expert(self, request: Mapping[str, Any]) -> bool:
        task, mistakes = from_json(Task, request["task"], "task"), request["mistakes"]
        if mistakes is None:
            expert = self.factory.expert(task)
        elif hasattr(self.factory, "noisy_expert"):
            expert = self.factory.noisy_expert(task, seed=mistakes["seed"], rates=mistakes["rates"])
        else:
            raise EnvError(f"{type(self.factory).__name__} has no noisy expert; set warm_start.noisy = 0")
        expert = Contract("expert", self.factory.expert).expert(expert)
        if expert is not None:
            self.experts[request["session"]] = expert
        return expert is not None

    def close(self, request: Mapping[str, Any]) -> None:
        self.experts.pop(request["session"], None)
        if (env := self.episodes.pop(request["session"], None)) is not None:
            env.close()


CALLS = {"start": "the factory", "advise": "the expert"}
"""Names of the user's functions, where they differ from the names of the requests."""


def load_factory(reference: str, options: Mapping[str, Any]) -> EnvFactory:
    """Create the factory that a reference names, with options that are checked against its signature."""
    factory = resolve(reference, Role.FACTORY)
    check_options(factory, options)
    instance: EnvFactory = factory(**options)
    return instance


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the protocol away from stdin and stdout; prints, also of C code and children, go to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def drop_capabilities() -> None:
    """Clear the inheritable capabilities too, which remain when root changes to another user."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def restrict(limits: Mapping[str, int | None], *, user: int | None) -> None:
    """Drop privileges and set the limits of this process and its children, by their names in `resource`.

    None leaves a limit unchanged.
    """
    import resource  # Unix only

    # If the machine runs out of memory all the same, the kernel ends this process and its children before the trainer.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        drop_capabilities()
    for name, limit in {**limits, "RLIMIT_CORE": 0}.items():
        kind = getattr(resource, name)
        _, most = resource.getrlimit(kind)
        if limit is not None:
            value = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (value, value))


def error_of(error: BaseException, request: str) -> dict[str, str]:
    """Return an exception as an answer to a request: its category, and an explanation for the author of the code."""
    match error:
        case MemoryError():
            return {"error": "memory", "text": "the memory limit was reached"}
        case RecursionError():
            return {"error": "recursion", "text": "the recursion limit was reached"}
        case SystemExit():
            return {"error": "exit", "text": f"the process was asked to exit ({error.code!r})"}
        case UserError():
            return {"error": "usage", "text": str(error), "missing": missing_module(error)}
    return {"error": "raised", "text": explain(error, request), "missing": missing_module(error)}


def missing_module(error: BaseException | None) -> str:
    """Return the module whose absence has led to an exception; empty if there is none."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return error.name or ""
        error = error.__cause__ or error.__context__
    return ""


def explain(error: BaseException, request: str) -> str:
    """Return the broken contract, or an exception with its place and traceback, in the user's code only."""
    if isinstance(error, ContractError | WireError):
        return str(error)
    return f"{CALLS.get(request, request)} raised {explain_exception(error)}"


def answer(host: Host, request: Mapping[str, Any]) -> bytes:
    """Return the line that answers a request: its value, or its error."""
    try:
        return encode({"id": request["id"], "value": host.handle(request)})
    except BaseException as error:  # an environment may raise anything; the trainer decides how to react
        return encode({"id": request["id"], **error_of(error, str(request.get("op")))})


def start(request: Mapping[str, Any]) -> Host:
    """Restrict this process and return the host of the factory that the first request names."""
    if request["dies_with_parent"]:
        # Without a sandbox: a hanging worker must not outlive a trainer that was killed.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    restrict(request["limits"], user=request["user"])
    sys.path += request["projects"]  # at the end, so that a project cannot hide installed packages
    return Host(load_factory(request["factory"], request["options"]))


def main() -> None:
    requests, answers = take_pipes()

    def send(line: bytes) -> None:
        answers.write(line)
        answers.flush()

    first = decode(requests.readline())
    try:
        host = start(first)
    except BaseException as error:  # reported instead of a bare exit code
        send(encode({"id": first["id"], **error_of(error, "start")}))
        sys.exit(1)
    send(encode({"id": first["id"], "value": None}))
    for line in requests:
        send(answer(host, decode(line)))
