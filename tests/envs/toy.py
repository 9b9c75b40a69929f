"""A counting environment for tests of workers and pools, which misbehaves on command.

Every misbehavior is bounded, so that a hole in a sandbox or a limit cannot take the machine down.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import platform
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from seeupo.errors import EnvError
from seeupo.types import Message, StepResult, Task, Tool

MOST_BYTES = 3 * 2**30
ADD = Tool("add", "Add to the count.", {"type": "object", "properties": {"number": {"type": "integer"}}})


class Toy:
    """Counts: "add N", "done", and commands that break things."""

    def __init__(self, factory):
        self.factory = factory
        self.count = 0
        self.closed = False

    def reset(self, task, *, seed):
        self.factory.block("reset")
        self.count = seed
        self.target = task.payload["target"]
        if task.payload.get("breaks_reset"):
            os._exit(3)
        if (flag := task.payload.get("breaks_first_reset")) and not Path(flag).exists():
            Path(flag).touch()
            os._exit(3)
        return said(f"count to {self.target}", tools=(ADD,))

    def step(self, text):
        command, _, rest = text.partition(" ")
        return getattr(self, f"do_{command}", self.unknown)(rest)

    def score(self):
        self.factory.block("score")
        if self.factory.bad_score:
            return self.factory.bad_score_value()
        return 1.0 if self.count == self.target else 0.0

    def save(self):
        return {"count": self.count}

    def close(self):
        self.factory.block("close")
        if self.factory.close_raises:
            raise RuntimeError("close is broken")

    def unknown(self, rest):
        return said("Error: unknown command")

    def do_add(self, rest):
        self.count += int(rest)
        return said(str(self.count), terminated=self.count == self.target)

    def do_say(self, rest):
        return said(rest)

    def do_hang(self, rest):
        while True:
            time.sleep(0.1)

    def do_spin(self, rest):
        while True:
            pass

    def do_exit(self, rest):
        os._exit(int(rest or 7))

    def do_sysexit(self, rest):
        sys.exit(3)

    def do_segfault(self, rest):
        ctypes.string_at(0)

    def do_memory(self, rest):
        blocks = []
        while sum(map(len, blocks)) < MOST_BYTES:
            blocks.append(bytearray(2**24))
        return said("no limit reached")

    def do_recurse(self, rest):
        return self.do_recurse(rest)

    def do_raise(self, rest):
        raise ValueError(rest)

    def do_usage(self, rest):
        raise EnvError(rest)

    def do_print(self, rest):
        print('{"id": 1, "value": "forged"}')
        sys.stdout.buffer.write(b"\xff\0 garbage\n")
        os.write(1, b"straight to the descriptor\n")
        os.system("echo from a child")
        sys.stderr.write("noise " * 100_000)
        return said("printed")

    def do_huge(self, rest):
        return said("x" * int(rest))

    def do_input(self, rest):
        return said(repr(sys.stdin.read() + os.read(0, 10).decode()))

    def do_fork(self, rest):
        """Fork children that hold every descriptor and would live for minutes."""
        for _ in range(int(rest)):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        return said("forked")

    def do_swarm(self, rest):
        """Fork as many children as the limits allow, up to a bound."""
        children = []
        try:
            for _ in range(int(rest)):
                child = os.fork()
                if child == 0:
                    time.sleep(600)
                    os._exit(0)
                children.append(child)
        except OSError:
            pass
        return said(str(len(children)))

    def do_network(self, rest):
        try:
            with socket.create_connection(("127.0.0.1", int(rest)), timeout=60):
                return said("connected")
        except OSError:
            return said("refused")

    def do_read(self, rest):
        try:
            return said(Path(rest).read_text())
        except OSError as error:
            return said(f"Error: {error.strerror}")

    def do_write(self, rest):
        try:
            Path(rest).write_text("written")
        except OSError as error:
            return said(f"Error: {error.strerror}")
        return said("written")

    def do_fill(self, rest):
        """Write a file of that many MB."""
        path = Path.home() / "filler"
        try:
            with path.open("wb") as file:
                for _ in range(int(rest)):
                    file.write(bytes(2**20))
                    file.flush()
        except OSError as error:
            return said(f"Error: {error.strerror}")
        return said("filled")

    def do_look(self, rest):
        """Report what a worker can see of the machine."""
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return said("", info={"uid": os.getuid(), "environ": dict(os.environ), "processes": len(processes)})

    def do_files(self, rest):
        """Report what the open descriptors refer to."""
        names = []
        for entry in list(Path("/proc/self/fd").iterdir()):
            try:
                names.append(str(entry.readlink()))
            except OSError:  # the descriptor that listed them
                names.append("gone")
        return said("", info={"files": names})

    def do_syscall(self, rest):
        """Make a system call with these numbers and report its error, or 0."""
        number, *arguments = map(int, rest.split())
        libc = ctypes.CDLL(None, use_errno=True)
        here = os.getpid()
        failed = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) == -1
        if os.getpid() != here:
            os._exit(0)
        return said(str(ctypes.get_errno() if failed else 0))

    def do_call32(self, rest):
        """Ask for the process id as a 32-bit program does: mov eax, 20; int 0x80; ret."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        page = mmap.mmap(-1, mmap.PAGESIZE, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return said(str(ctypes.CFUNCTYPE(ctypes.c_int)(address)()))

    def do_sockets(self, rest):
        """Report the families and protocols of sockets that can be created."""
        families = [family for family in range(64) if can_create(family, socket.SOCK_DGRAM, 0)]
        protocols = [number for number in range(264) if can_create(socket.AF_INET, socket.SOCK_STREAM, number)]
        return said("", info={"families": families, "protocols": protocols})

    def do_stop(self, rest):
        """Stop this process, or in a sandbox the one that has the number."""
        os.kill(int(rest or os.getpid()), signal.SIGSTOP)
        return said("continued")

    def do_gather(self, rest):
        """Fork children that hold so many MB each, and shared ones beside; they live for minutes."""
        count, own, shared = map(int, rest.split())
        common = b"x" * (shared << 20)
        for _ in range(count):
            ready, done = os.pipe()
            if os.fork() == 0:
                mine = b"y" * (own << 20)
                os.write(done, b"1")
                time.sleep(600)
                os._exit(len(mine) + len(common))
            os.read(ready, 1)
        return said("gathered")

    def do_name(self, rest):
        """Fork a child that takes a name, given as hexadecimal digits, ends, and is not waited for."""
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(15, bytes.fromhex(rest), 0, 0, 0)  # PR_SET_NAME
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        return said("named")

    def do_behead(self, rest):
        """Fork a child whose first thread ends, while another one fills so many MB."""
        if os.fork() == 0:
            first = threading.get_native_id()
            threading.Thread(target=fill_without, args=(first, int(rest))).start()
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit, of this thread
        return said("forked")

    def do_share(self, rest):
        """Map shared memory: without a file, of the device of zeros, of a file as Python's own library does."""
        errors = []
        for place in (None, "/dev/zero"):
            try:
                mmap.mmap(-1 if place is None else os.open(place, os.O_RDWR), mmap.PAGESIZE)
            except OSError as error:
                errors.append(error.strerror)
        return said("", info={"errors": errors, "array": list(multiprocessing.RawArray("b", 3))})

    def do_connect(self, rest):
        """Connect so many pairs of sockets of a family, ask for large buffers, and fill them."""
        family, count = rest.split()
        sent = 0
        with socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(int(count)):
                if family == "unix":
                    pair = socket.socketpair()
                else:
                    pair = socket.create_connection(server.getsockname()), server.accept()[0]
                self.factory.sockets += pair
                for end in pair:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)
                    end.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            sent += end.send(bytes(2**16))
        return said("", info={"sent": sent})

    def do_settings(self, rest):
        """Report the files of /proc, outside of processes, that can be opened for writing; /proc/pressure may be."""
        files = []
        for folder, folders, names in os.walk("/proc"):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdecimal() and name not in ("self", "thread-self")]
            files += [path for name in names if can_write(path := f"{folder}/{name}")]
        return said("", info={"writable": [path for path in files if not path.startswith("/proc/pressure/")]})

    def do_files_of(self, rest):
        """Create so many empty files in the scratch space."""
        for number in range(int(rest)):
            Path(f"/tmp/{number}").touch()
        return said("created")

    def do_kill(self, rest):
        """Kill this process and its group (0), or all others that can be reached (-1)."""
        if os.getpid() > 2:
            return said("Error: not in a sandbox, so better not")
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(rest), 9)
        return said("still here")

    def do_once(self, rest):
        """Break a worker the first time only, as a faulty machine would."""
        how, _, flag = rest.partition(" ")
        if not Path(flag).exists():
            Path(flag).touch()
            self.step(how)
        return said("survived")

    def do_random(self, rest):
        return said(str(random.SystemRandom().random()))

    def do_shapeless(self, rest):
        return StepResult((Message("stranger", "a role that does not exist"),))

    def do_unsendable(self, rest):
        return said("", info={"path": Path("/")})

    def do_modules(self, rest):
        return said(" ".join(sorted(sys.modules)))

    def do_hash(self, rest):
        return said(str(hash(rest)))

    def do_noise(self, rest):
        return said("the same", info={"time": time.time()})


class ToyFactory:
    """Provides toy tasks in a train and a test split."""

    def __init__(
        self,
        *,
        size: int = 4,
        scale: float = 1.0,
        mood: Literal["calm", "wild"] = "calm",
        note: str | None = None,
        has_expert: bool = True,
        close_raises: bool = False,
        bad_score: Literal["", "nan", "text", "raise", "exit"] = "",
        blocks: str = "",
    ):
        self.size = size
        self.has_expert = has_expert
        self.close_raises = close_raises
        self.bad_score = bad_score
        self.blocks = blocks
        self.sockets = []
        if note == "refuse":
            raise EnvError("the data is missing; fetch it")
        if note == "raise":
            raise RuntimeError("the factory is broken")
        if note == "hang":
            time.sleep(600)

    def block(self, op):
        """Never return from a call if the options say so."""
        while op == self.blocks:
            time.sleep(0.1)

    def bad_score_value(self):
        if self.bad_score == "raise":
            raise RuntimeError("the checker is broken")
        if self.bad_score == "exit":
            os._exit(9)
        return {"nan": float("nan"), "text": "1.0"}[self.bad_score]

    @property
    def splits(self):
        return ["train", "test"]

    def tasks(self, split):
        self.block("tasks")
        return [Task(f"{split}-{number}", split, payload={"target": number + 3}) for number in range(self.size)]

    def make(self):
        return Toy(self)

    def expert(self, task):
        self.block("expert")
        if not self.has_expert:
            return None
        target = task.payload["target"]
        counted = 0

        def act(result):
            nonlocal counted
            self.block("advise")
            counted += 1
            return "add 1" if counted <= target else "done"

        return act


class JudgedToyFactory(ToyFactory):
    """Scores with a separate judge, which alone can read the answers."""

    def __init__(self, *, answers: str):
        super().__init__()
        self.answers = answers
        self.bad_score = "raise"

    def judge(self, task, saved):
        return float(saved["count"] == int(Path(self.answers).read_text()))


def mounts(options, *, role):
    """Mount the folder of the answers for the judge only."""
    folder = Path(options["answers"]).parent
    return {folder: folder} if role == "judge" else {}


def can_create(family, kind, protocol):
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return False
    return True


def can_write(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def fill_without(thread, megabytes):
    """Wait until a thread of this process has ended, and hold memory for minutes."""
    while Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    held = b"x" * (megabytes << 20)
    time.sleep(600)
    os._exit(len(held))


def said(text, **fields):
    return StepResult((Message("user", text),), **fields)
