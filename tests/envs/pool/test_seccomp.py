import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from envs.worlds import every_sandbox, observation, step
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.seccomp import (
    ALLOW,
    ERRNO,
    FIRST_UNKNOWN,
    KILL_PROCESS,
    MACHINES,
    REFUSED,
    filter_program,
)

NEWUSER, THREAD, SIGCHLD = 0x10000000, 0x003D0F00, 17
READ = {"x86_64": 0, "aarch64": 63}
HERE = MACHINES.get(platform.machine())
machines = pytest.mark.parametrize("name", MACHINES)


def run_filter(name, number, *arguments, audit=None):
    """Interpret the program as the kernel does, and return its decision."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, MACHINES[name].audit if audit is None else audit, 0, *words)
    program = list(struct.iter_unpack("<HBBI", filter_program(name)))
    loaded = position = 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case 0x15 | 0x35 | 0x45:
                passed = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
                position += if_true if passed else if_false


@machines
def test_listed_calls_are_refused_and_others_allowed(name):
    machine = MACHINES[name]
    refused = {numbers[machine.column] for numbers in REFUSED.values()} - {None}
    special = {machine.clone, machine.clone3, machine.mmap, machine.setsockopt, *machine.sockets}
    for number in range(FIRST_UNKNOWN):
        expected = ERRNO | errno.EPERM if number in refused else ALLOW
        if number not in special:
            assert run_filter(name, number) == expected, number
    assert run_filter(name, READ[name], 3, 4, 5) == ALLOW


@machines
def test_newer_calls_do_not_exist_for_a_worker(name):
    for number in (FIRST_UNKNOWN, FIRST_UNKNOWN + 100, 0x40000000 + 39, 0x7FFFFFFF, -1):
        assert run_filter(name, number) == ERRNO | errno.ENOSYS


@machines
def test_calls_of_another_architecture_kill(name):
    assert run_filter(name, 39, audit=0x40000003) == KILL_PROCESS


@machines
def test_threads_and_processes_are_allowed_but_no_namespaces(name):
    machine = MACHINES[name]
    assert run_filter(name, machine.clone, SIGCHLD) == ALLOW
    assert run_filter(name, machine.clone, THREAD) == ALLOW
    assert run_filter(name, machine.clone3) == ERRNO | errno.ENOSYS
    for bit in (17, *range(25, 31)):
        assert run_filter(name, machine.clone, SIGCHLD | 1 << bit) == ERRNO | errno.EPERM
        assert run_filter(name, machine.clone, 0xFFFF << 32 | SIGCHLD | 1 << bit) == ERRNO | errno.EPERM


@machines
def test_sockets_are_local_or_of_the_internet(name):
    for number in MACHINES[name].sockets:
        for family in range(64):
            expected = ALLOW if family in (1, 2, 10) else ERRNO | errno.EAFNOSUPPORT
            assert run_filter(name, number, family, 1, 0) == expected
        assert run_filter(name, number, 2, 1, 6) == ALLOW
        assert run_filter(name, number, 2, 1, 132) == ERRNO | errno.EPROTONOSUPPORT  # SCTP


@machines
def test_shared_mappings_need_a_file(name):
    number = MACHINES[name].mmap
    for flags in (0x01, 0x02, 0x03, 0x22, 0x4022):
        assert run_filter(name, number, 0, 4096, 3, flags) == ALLOW
    for flags in (0x21, 0x23, 0xFFFF << 32 | 0x8021):
        assert run_filter(name, number, 0, 4096, 3, flags) == ERRNO | errno.EPERM


@machines
def test_sizes_of_socket_buffers_are_ignored(name):
    number = MACHINES[name].setsockopt
    for option in range(100):
        assert run_filter(name, number, 3, 1, option) == (ERRNO if option in (7, 8, 32, 33) else ALLOW)
        assert run_filter(name, number, 3, 6, option) == ALLOW


@pytest.mark.parametrize(
    ("name", "header", "pattern"),
    [
        ("x86_64", "x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        ("aarch64", "asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
    ],
)
def test_numbers_agree_with_the_headers_of_the_kernel(name, header, pattern):
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"{path} is not installed (Debian package: linux-libc-dev)")
    known = {call: int(number) for call, number in re.findall(pattern, path.read_text())}
    machine = MACHINES[name]
    ours = {call: numbers[machine.column] for call, numbers in REFUSED.items()}
    ours |= {"clone": machine.clone, "clone3": machine.clone3}
    ours |= {"mmap": machine.mmap, "setsockopt": machine.setsockopt}
    ours |= dict(zip(("socket", "socketpair"), machine.sockets, strict=True))
    checked = [call for call in ours if call in known]
    assert len(checked) > 55
    assert {call: known[call] for call in checked} == {call: ours[call] for call in checked}


@every_sandbox
def test_a_worker_cannot_make_refused_calls(started, sandbox):
    """With invalid arguments, so that nothing would happen without a filter either."""
    worker = started(False, sandbox=sandbox)
    for name, numbers in REFUSED.items():
        if (number := numbers[HERE.column]) is not None:
            answer = observation(worker, f"syscall {number} -1 -1 -1 -1 -1")
            assert int(answer) == errno.EPERM, name
    assert int(observation(worker, f"syscall {HERE.clone3} -1 -1")) == errno.ENOSYS
    assert int(observation(worker, f"syscall {HERE.clone} {NEWUSER | SIGCHLD} 0 0 0 0")) == errno.EPERM
    assert int(observation(worker, f"syscall {0x40000000 + 39}")) == errno.ENOSYS
    assert observation(worker, "fork 1") == "forked"


@every_sandbox
def test_a_worker_has_no_shared_memory_without_an_owner(started, sandbox):
    """Its pages would remain after they are unmapped, seen by no count of memory. Shared files are allowed."""
    shared = step(started(False, sandbox=sandbox), "share").info
    assert shared == {"errors": ["Operation not permitted", "Permission denied"], "array": [0, 0, 0]}


@every_sandbox
def test_a_worker_has_local_and_internet_sockets_only(started, sandbox):
    assert step(started(False, sandbox=sandbox), "sockets").info == {"families": [1, 2, 10], "protocols": [0, 6]}


@every_sandbox
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the machine code is that of x86_64")
def test_a_32_bit_call_kills_the_worker(started, sandbox):
    with pytest.raises(WorkerFailure, match="159") as failure:  # 128 + SIGSYS
        step(started(False, sandbox=sandbox), "call32")
    assert failure.value.cause is FailureCause.CRASH
