"""One artifact by its digest: resumed where it broke off, bounded, verified, then named."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import aclosing, suppress
from pathlib import Path

from edge_agent.ports import Fetch
from edge_agent.update.disk import Disk, is_full, settle
from oip.errors import OipError

CHUNK_TIMEOUT_S = 30.0


class NotBrought(Exception):
    """The artifact is not verified or did not come; the text is one sentence. `again`: another time it
    may."""

    def __init__(self, text: str, again: bool = True) -> None:
        super().__init__(text)
        self.again = again


async def fetch_blob(disk: Disk, digest: str, size: int, limit: int, fetch: Fetch) -> None:
    """See that the artifact of this digest and size lies on the disk. Raises NotBrought.

    At most `size` bytes are taken, and none when it is over `limit`. What came of it before it broke off
    stays for the next time, unless it proved wrong or filled the disk.
    """
    if size > limit:
        raise NotBrought(
            f"The artifact has {size} bytes, and this device takes at most {limit}.", again=False
        )
    try:
        path, part = disk.blob(digest), disk.part(digest)
    except ValueError:
        raise NotBrought(
            "The artifact's digest is not of the form sha256:<64 hex digits>.", again=False
        ) from None
    if await asyncio.to_thread(disk.holds, digest, size):
        return
    try:
        found = await _receive(part, digest, size, fetch)
        if found != digest:
            part.unlink(missing_ok=True)
            raise NotBrought("What the hub sent does not have the artifact's digest.")
        await asyncio.to_thread(_sync, part)
        await asyncio.to_thread(settle, part, path)
    except TimeoutError:
        raise NotBrought(f"The hub sent nothing of the artifact for {CHUNK_TIMEOUT_S:g} s.") from None
    except OSError as fault:
        if is_full(fault):
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise NotBrought("The device's disk is full: make room for the artifact.") from None
        raise NotBrought("The device's disk cannot be written.") from None
    except OipError as fault:
        raise NotBrought(f"The hub cannot give the artifact: {fault.message}") from None


async def _receive(part: Path, digest: str, size: int, fetch: Fetch) -> str:
    """Append what is missing; the digest of the whole."""
    hashed = hashlib.sha256()
    offset = await asyncio.to_thread(_hash_part, part, size, hashed)
    with part.open("ab") as file:
        if offset < size:
            async with aclosing(fetch(digest, offset)) as pieces:
                while True:
                    async with asyncio.timeout(CHUNK_TIMEOUT_S):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    if not piece:
                        raise NotBrought("The hub sent an empty piece of the artifact.")
                    offset += len(piece)
                    if offset > size:
                        raise _too_much(part, size)
                    hashed.update(piece)
                    file.write(piece)
    if offset < size:
        raise NotBrought(f"The hub sent {offset} of the artifact's {size} bytes.")
    return f"sha256:{hashed.hexdigest()}"


def _too_much(part: Path, size: int) -> NotBrought:
    part.unlink(missing_ok=True)
    return NotBrought(f"The hub sent more than the artifact's {size} bytes.")


def _hash_part(part: Path, size: int, hashed: hashlib._Hash) -> int:
    """Bytes that are there already, once they are in the hash; a part that is too long is dropped."""
    try:
        if part.stat().st_size > size:
            part.unlink()
            return 0
        with part.open("rb") as file:
            while piece := file.read(2**20):
                hashed.update(piece)
            return file.tell()
    except FileNotFoundError:
        return 0


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
