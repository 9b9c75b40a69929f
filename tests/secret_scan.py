"""Search files for secrets: in names, in bytes, and in what is compressed or encoded in them."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

BASE64 = re.compile(rb"[A-Za-z0-9+/]{64,}={0,2}")
GZIP = b"\x1f\x8b\x08"


def find_secrets(folder: Path, secrets: Collection[str]) -> list[str]:
    """Return the files and directories below a folder that contain a secret, each with the secret's name."""
    matches = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        contents = [name.encode()]
        if path.is_symlink():
            contents.append(str(path.readlink()).encode())
        elif path.is_file():
            contents += views(path.read_bytes())
        matches += [
            f"{name}: {secret}"
            for secret in secrets
            if any(form in content for content in contents for form in forms(secret))
        ]
    return matches


def forms(secret: str) -> list[bytes]:
    """Return the bytes that stand for a text: also as UTF-16, and as escaped by JSON in JSON."""
    return [secret.encode(), secret.encode("utf-16-le"), secret.replace("/", "\\/").encode()]


def views(content: bytes, depth: int = 3) -> Iterator[bytes]:
    """Yield the content of a file, and what is compressed or encoded in it."""
    yield content
    if depth == 0:
        return
    for match in re.finditer(re.escape(GZIP), content):
        unpacked = inflated(content[match.start() :], 31)
        if unpacked:
            yield from views(unpacked, depth - 1)
    for match in BASE64.finditer(content):
        try:
            decoded = base64.b64decode(match[0])
        except binascii.Error:
            continue
        for unpacked in (decoded, inflated(decoded, 15), inflated(decoded, -15)):
            if unpacked:
                yield from views(unpacked, depth - 1)


def inflated(content: bytes, wbits: int) -> bytes:
    """Return the beginning of compressed data as far as it can be read; empty if it is something else."""
    decompressor = zlib.decompressobj(wbits)
    parts = []
    for start in range(0, len(content), 4096):
        try:
            parts.append(decompressor.decompress(content[start : start + 4096]))
        except zlib.error:
            break
    return b"".join(parts) if len(b"".join(parts)) > 8 else b""
