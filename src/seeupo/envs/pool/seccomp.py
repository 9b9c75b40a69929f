"""System call filter of sandboxed workers: a seccomp program in classic BPF, as bytes for `bwrap --seccomp`.

Workers share the kernel with the host. The filter takes away what environments do not need and what attacks on kernels
use: namespaces, mounts, tracing, keys, io_uring, BPF, modules, unusual sockets, and every call that is newer than this
list. It also refuses memory that belongs to no process and is therefore not seen by the watchdog: memfd, System V,
shared mappings without a file, of which pages remain that no process has mapped, and larger buffers of sockets.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import MappingProxyType

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

# Offsets in the kernel's `struct seccomp_data`: number, architecture, instruction pointer, six arguments of 64 bits.
NUMBER, ARCHITECTURE = 0, 4
FIRST_ARGUMENT, ARGUMENT_BYTES = 16, 8

LOAD = 0x20
EQUAL = 0x15
AT_LEAST = 0x35
ANY_BIT = 0x45
RETURN = 0x06

SHARED, ANONYMOUS = 0x01, 0x20
"""Flags of `mmap`."""

SOCKET_LEVEL = 1
BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, and the same for administrators."""

NEW_NAMESPACES = 0x7E020000
"""Flags of `clone` that create namespaces: mount, cgroup, UTS, IPC, user, PID and network."""

FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6: an environment may have servers of its own on the loopback interface."""

PROTOCOLS = (0, 6, 17)
"""The family's default, TCP and UDP."""

FIRST_UNKNOWN = 457
"""Calls from here on are newer than this list. It is above all tables; calls of the x32 ABI are above it too."""

REFUSED: Mapping[str, tuple[int | None, int | None]] = MappingProxyType(
    {
        # keys
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
        # io_uring makes calls that no filter sees
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        # other processes
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "pidfd_getfd": (438, 438),
        "kcmp": (312, 272),
        # namespaces and mounts
        "unshare": (272, 97),
        "setns": (308, 268),
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "open_tree": (428, 428),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "name_to_handle_at": (303, 264),
        "open_by_handle_at": (304, 265),
        # programs and faults in the kernel
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "fanotify_init": (300, 262),
        "lookup_dcookie": (212, 18),
        "move_pages": (279, 239),
        "migrate_pages": (256, 238),
        # the machine
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "reboot": (169, 142),
        "acct": (163, 89),
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "clock_adjtime": (305, 266),
        "adjtimex": (159, 171),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "syslog": (103, 116),
        "vhangup": (153, 58),
        "nfsservctl": (180, 42),
        "personality": (135, 92),
        "uselib": (134, None),
        "ustat": (136, None),
        "sysfs": (139, None),
        "modify_ldt": (154, None),
        "iopl": (172, None),
        "ioperm": (173, None),
        # memory that belongs to no process
        "memfd_create": (319, 279),
        "memfd_secret": (447, 447),
        "shmget": (29, 194),
        "msgget": (68, 186),
        "semget": (64, 190),
    }
)
"""Numbers of refused calls on x86_64 and aarch64; None where a call does not exist."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its audit number, its column in `REFUSED`, and calls that depend on arguments."""

    audit: int
    column: int
    clone: int
    clone3: int
    sockets: tuple[int, int]
    mmap: int
    setsockopt: int


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "x86_64": Machine(0xC000003E, 0, clone=56, clone3=435, sockets=(41, 53), mmap=9, setsockopt=54),
        "aarch64": Machine(0xC00000B7, 1, clone=220, clone3=435, sockets=(198, 199), mmap=222, setsockopt=208),
    }
)

Instruction = tuple[int, int, int, int]
"""Operation, number of instructions to skip if true, the same if false, and operand."""
ALLOWED: Instruction = (RETURN, 0, 0, ALLOW)


@cache
def filter_program(name: str) -> bytes:
    """Return the program for one of `MACHINES`."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions(MACHINES[name]))


def open_filter() -> int:
    """Return a descriptor to read this machine's program from. The caller closes it."""
    reader, writer = os.pipe()
    os.write(writer, filter_program(platform.machine()))  # far less than a pipe holds
    os.close(writer)
    return reader


def instructions(machine: Machine) -> list[Instruction]:
    refused = (number for numbers in REFUSED.values() if (number := numbers[machine.column]) is not None)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        # Calls of another architecture, such as 32-bit calls, have other numbers.
        (EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        *when(AT_LEAST, FIRST_UNKNOWN, [fail(errno.ENOSYS)]),
        *chain.from_iterable(when(EQUAL, number, [fail(errno.EPERM)]) for number in refused),
        # The flags of clone3 are in memory, which a filter cannot read; libraries fall back to clone.
        *when(EQUAL, machine.clone3, [fail(errno.ENOSYS)]),
        *when(EQUAL, machine.clone, [argument(0), *when(ANY_BIT, NEW_NAMESPACES, [fail(errno.EPERM)]), ALLOWED]),
        *chain.from_iterable(when(EQUAL, number, socket_rules()) for number in machine.sockets),
        *when(EQUAL, machine.mmap, mapping_rules()),
        *when(EQUAL, machine.setsockopt, option_rules()),
        ALLOWED,
    ]


def socket_rules() -> list[Instruction]:
    return [
        argument(0),
        *one_of(FAMILIES, errno.EAFNOSUPPORT),
        argument(2),
        *one_of(PROTOCOLS, errno.EPROTONOSUPPORT),
        ALLOWED,
    ]


def mapping_rules() -> list[Instruction]:
    return [
        argument(3),
        *when(ANY_BIT, ANONYMOUS, [*when(ANY_BIT, SHARED, [fail(errno.EPERM)]), ALLOWED]),
        ALLOWED,
    ]


def option_rules() -> list[Instruction]:
    """Ignore sizes of buffers, as the kernel ignores those above its limit."""
    ignored = [(EQUAL, 0, 1, size) for size in BUFFER_SIZES]
    rules = [instruction for test in ignored for instruction in (test, fail(0))]
    return [argument(1), *when(EQUAL, SOCKET_LEVEL, [argument(2), *rules, ALLOWED]), ALLOWED]


def when(test: int, operand: int, block: list[Instruction]) -> list[Instruction]:
    """Run a block, which ends with a return, if the loaded value passes the test."""
    return [(test, 0, len(block), operand), *block]


def one_of(values: Sequence[int], error: int) -> list[Instruction]:
    """Fail unless the loaded value is one of these."""
    tests = [(EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*tests, fail(error)]


def argument(index: int) -> Instruction:
    """Load the lower half of an argument; the kernel ignores the upper half of flags and small integers."""
    return (LOAD, 0, 0, FIRST_ARGUMENT + ARGUMENT_BYTES * index)


def fail(error: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | error)
