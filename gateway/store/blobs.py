"""Released artifacts and the signed metadata about them: a local folder or a bucket.

    blobs/AB/ABCD...    content, named by its SHA-256; it never changes
    metadata/NAME       small files that are replaced as a whole

A file is there whole or not at all, and in a local folder it is on disk before it is told of. The
gateway's own processes share one store; only control writes to it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from gateway.core.release import Blob

FOLDER = "artifacts"
"""Of the state directory, where the configuration names no store."""
PIECE_BYTES = 256 * 1024
HASH = "sha256:"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LEFT = re.compile(r".+#[0-9]+")
"""What a write that was cut off leaves in a local folder."""
_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "file too large",
}


class BlobError(RuntimeError):
    """The store cannot be read or written now, or does not hold what was asked for. One sentence."""


class BlobMissing(BlobError):
    """The store has no such content."""


class BlobDamaged(BlobError):
    """What is stored is not what its digest says."""


class BlobStore:
    """`url` as in the configuration's `artifacts`; None: a folder of `state_dir`. Every method may raise
    BlobError. Raises BlobError, too, when a local folder cannot be made."""

    def __init__(self, url: str | None, state_dir: Path) -> None:
        self._folder: Path | None = None
        parts = urlsplit(url or "")
        if parts.scheme == "s3":
            self._store: Any = S3Store(parts.netloc, prefix=unquote(parts.path).strip("/") or None)
            return
        self._folder = Path(unquote(parts.path)) if url else state_dir.absolute() / FOLDER
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._store = LocalStore(self._folder)
        except (OSError, BaseError) as error:
            raise BlobError(f"the artifact store {self._folder} cannot be used: {_why(error)}") from None

    async def put(self, content: bytes) -> Blob:
        """Store content under its digest. The same content twice is one blob."""
        blob = await asyncio.to_thread(blob_of, content)
        path = _path(blob.digest)
        try:
            await obstore.put_async(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if not await self._is_whole(blob):
                # It was cut off by a power failure, before anybody was told of it.
                await self._put(path, content)
        except (OSError, BaseError) as error:
            raise _unwritten(error) from None
        await self._settle(path)
        return blob

    async def put_file(self, path: Path) -> Blob:
        """Store a file's content. Raises OSError when the file cannot be read."""
        return await self.put(await asyncio.to_thread(path.read_bytes))

    async def get(self, blob: Blob) -> bytes:
        """The whole content. Raises BlobDamaged when it is not that of the digest."""
        try:
            found = await obstore.get_async(self._store, _path(blob.digest))
            content = bytes(await found.bytes_async())
        except (OSError, BaseError) as error:
            raise _unread(blob, error) from None
        if await asyncio.to_thread(blob_of, content) != blob:
            raise BlobDamaged(f"the stored artifact {blob.digest} is damaged: it is other content")
        return content

    async def stream(self, blob: Blob, offset: int = 0) -> AsyncIterator[bytes]:
        """The content from an offset (0 to its size), in pieces of about PIECE_BYTES. Whoever reads it all
        checks the digest. Raises BlobDamaged when it is not as long as the blob."""
        if offset == blob.size:
            return
        try:
            options: Any = {"range": {"offset": offset}} if offset else None
            found = await obstore.get_async(self._store, _path(blob.digest), options=options)
            if found.meta["size"] != blob.size:
                raise BlobDamaged(f"the stored artifact {blob.digest} is damaged: it has another length")
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)
        except (OSError, BaseError) as error:
            raise _unread(blob, error) from None

    async def has(self, blob: Blob) -> bool:
        """Whether it is there, in its length."""
        try:
            return (await obstore.head_async(self._store, _path(blob.digest)))["size"] == blob.size
        except (FileNotFoundError, NotFoundError):
            return False
        except (OSError, BaseError) as error:
            raise _unread(blob, error) from None

    async def find(self, digest: str) -> Blob | None:
        """The blob of a digest; None where none is stored, or the text is no digest."""
        if _DIGEST.fullmatch(digest) is None:
            return None
        try:
            return Blob(digest, (await obstore.head_async(self._store, _path(digest)))["size"])
        except (FileNotFoundError, NotFoundError):
            return None
        except (OSError, BaseError) as error:
            raise _unread(Blob(digest, 0), error) from None

    async def put_metadata(self, name: str, content: bytes) -> None:
        """Write a metadata file in place of the one of this name: readers see the one or the other."""
        await self._put(_metadata(name), content)
        await self._settle(_metadata(name))

    async def metadata(self, name: str) -> bytes | None:
        """A metadata file; None where there is none of this name."""
        try:
            found = await obstore.get_async(self._store, _metadata(name))
            return bytes(await found.bytes_async())
        except (FileNotFoundError, NotFoundError):
            return None
        except (OSError, BaseError) as error:
            raise BlobError(f"the artifact store cannot be read: {_why(error)}") from None

    async def metadata_names(self) -> tuple[str, ...]:
        """Every metadata file, by name."""
        return tuple(sorted([entry["path"].rpartition("/")[2] async for entry in self._listed("metadata/")]))

    async def drop_metadata(self, names: Iterable[str]) -> None:
        """Forget metadata files that nobody is led to any more."""
        for name in names:
            await self._delete(_metadata(name))

    async def sweep(self, kept: Iterable[Blob], older_than: float) -> int:
        """Remove every blob that is not among `kept` and was written before `older_than` (seconds since the
        epoch): what is being uploaded is not in a release yet. Returns how many."""
        wanted = {_path(blob.digest) for blob in kept}
        left = [
            entry["path"]
            async for entry in self._listed("blobs/")
            if entry["path"] not in wanted and entry["last_modified"].timestamp() < older_than
        ]
        for path in left:
            await self._delete(path)
        await asyncio.to_thread(self._remove_cut_off, older_than)
        return len(left)

    async def _is_whole(self, blob: Blob) -> bool:
        try:
            return bool(await self.get(blob))
        except BlobDamaged:
            return False

    async def _put(self, path: str, content: bytes) -> None:
        try:
            await obstore.put_async(self._store, path, content, use_multipart=False)
        except (OSError, BaseError) as error:
            raise _unwritten(error) from None

    async def _delete(self, path: str) -> None:
        try:
            await obstore.delete_async(self._store, path)
        except (FileNotFoundError, NotFoundError):
            pass
        except (OSError, BaseError) as error:
            raise _unwritten(error) from None

    async def _listed(self, prefix: str) -> AsyncIterator[Any]:
        try:
            async for batch in obstore.list(self._store, prefix):
                for entry in batch:
                    yield entry
        except (OSError, BaseError) as error:
            raise BlobError(f"the artifact store cannot be listed: {_why(error)}") from None

    async def _settle(self, path: str) -> None:
        """A bucket has what it has acknowledged; a local file is on disk after this."""
        if self._folder is not None:
            try:
                await asyncio.to_thread(_sync, self._folder, self._folder / path)
            except OSError as error:
                raise _unwritten(error) from None

    def _remove_cut_off(self, older_than: float) -> None:
        for file in self._files():
            if _LEFT.fullmatch(file.name) and file.stat().st_mtime < older_than:
                file.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return iter(()) if self._folder is None else (f for f in self._folder.rglob("*") if f.is_file())


def blob_of(content: bytes) -> Blob:
    """What content is called in a store."""
    return Blob(HASH + hashlib.sha256(content).hexdigest(), len(content))


def _path(digest: str) -> str:
    if _DIGEST.fullmatch(digest) is None:
        raise BlobError("that is no digest of an artifact")
    name = digest.removeprefix(HASH)
    return f"blobs/{name[:2]}/{name}"


def _metadata(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BlobError("that is no name of a metadata file")
    return f"metadata/{name}"


def _sync(root: Path, path: Path) -> None:
    """The file, and every folder that leads to it."""
    for each in (path, *path.parents):
        held = os.open(each, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)
        if each == root:
            return


def _unwritten(error: Exception) -> BlobError:
    return BlobError(f"the artifact was not stored: {_why(error)}")


def _unread(blob: Blob, error: Exception) -> BlobError:
    if isinstance(error, FileNotFoundError | NotFoundError):
        return BlobMissing(f"the artifact {blob.digest} is not in the store")
    return BlobError(f"the artifact {blob.digest} cannot be read: {_why(error)}")


def _why(error: Exception) -> str:
    """The store's words without its debug print; a system's own words where it gives its number."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    found = re.search(r"\(os error ([0-9]+)\)", str(error))
    number = error.errno if isinstance(error, OSError) and error.errno else int(found[1]) if found else 0
    return _WORDS.get(number) or (os.strerror(number).lower() if number else text)
