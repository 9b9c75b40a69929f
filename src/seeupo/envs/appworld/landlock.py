"""Hide a folder from this process and all that it starts, with the kernel's Landlock (Linux 5.13 and later)."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38
READ_FILE = 1 << 2
READ_DIR = 1 << 3


def hide(folder: Path) -> bool:
    """Make everything in the first directory of an absolute path unreadable; return False if the kernel cannot.

    Landlock lists what is allowed, so every other directory in the root is. Only the calling thread and what it starts
    are restricted: call this before there are other threads.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rights = READ_FILE | READ_DIR
    rules = libc.syscall(CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    if rules < 0:
        return False
    try:
        for allowed in Path("/").iterdir():
            if allowed.name == folder.parts[1] or not allowed.is_dir():
                continue
            directory = os.open(allowed, os.O_PATH)
            try:
                rule = struct.pack("=Qi", rights, directory)
                check(libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0))
            finally:
                os.close(directory)
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        check(libc.syscall(RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)
    return True


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
