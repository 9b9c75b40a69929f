"""Detect code that runs because of an input: a reader may neither execute text nor start processes nor connect."""

import sys
from contextlib import contextmanager

FORBIDDEN = ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")
_STATE = {"installed": False, "reaching": None}


class Executed(AssertionError):
    """An input had an effect that no input may have."""


@contextmanager
def nothing_executes(*, address=None):
    """Raise `Executed` at the first such effect; connections to `address` are allowed."""
    if not _STATE["installed"]:
        sys.addaudithook(_hook)  # cannot be removed; it returns at once outside of this block
        _STATE["installed"] = True
    _STATE["reaching"] = (address,)
    try:
        yield
    finally:
        _STATE["reaching"] = None


def _hook(event, arguments):
    if _STATE["reaching"] is None:
        return
    if event in FORBIDDEN:
        raise Executed(f"{event}{arguments!r}"[:300])
    if event == "exec":
        name = getattr(arguments[0], "co_filename", "")
        if name.startswith("<") and not name.startswith("<frozen"):  # imports execute files
            raise Executed(f"text was executed ({name})")
    if event == "socket.connect" and arguments[1] not in _STATE["reaching"]:
        raise Executed(f"a connection to {arguments[1]!r}")
