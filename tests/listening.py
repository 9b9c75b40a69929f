"""List the sockets that processes listen on, from /proc."""

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

LISTEN = "0A"


class Listener(NamedTuple):
    """A TCP socket that a process listens on."""

    address: IPv4Address | IPv6Address
    port: int
    process: str

    @property
    def is_private(self) -> bool:
        """Whether only this machine can connect; IPv4 addresses may be written as IPv6."""
        return (getattr(self.address, "ipv4_mapped", None) or self.address).is_loopback


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def listeners(pids: list[int]) -> list[Listener]:
    """Return the TCP sockets that these processes listen on."""
    owners = {inode: pid for pid in pids for inode in _sockets(pid)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and inode in owners:
                address, port = local.split(":")
                name = Path(f"/proc/{owners[inode]}/cmdline").read_bytes().split(b"\0")[0].decode()
                found.append(Listener(_address(address), int(port, 16), name))
    return found


def _sockets(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _address(text: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel wrote as words in its own byte order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    size = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return ip_address(socket.inet_ntop(size, b"".join(words)))
