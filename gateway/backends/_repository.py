"""A Triton model repository that Tidegate may write: a folder or a bucket.

    MODEL/config.pbtxt, labels ...    as the operator made them; never touched
    MODEL/N/...                       versions, of which those with the file MARK are Tidegate's own

Only own versions are ever changed or removed. A version is there whole before anybody is told to load it:
in a folder it is renamed into place, in a bucket its model file comes last.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from gateway.store.whole import sync_folder

MARK = "tidegate"
"""A file in each of Tidegate's versions."""
SUFFIX = ".onnx"
Files = Mapping[str, bytes]
"""A version's files by their path in it."""


class RepositoryError(RuntimeError):
    """The repository cannot be read or written, or is not as it must be. One clause."""


class Repository:
    """At a URL of `open_repository`. Every method may raise RepositoryError."""

    def __init__(self, store: Any, folder: Path | None = None) -> None:
        self._store = store
        self._folder = folder

    async def versions(self, model: str) -> dict[int, bool]:
        """Every version of a model, and whether it is Tidegate's own."""
        found: dict[int, bool] = {}
        for path in await self._paths(f"{model}/"):
            number, _, rest = path.partition("/")
            if rest and number.isascii() and number.isdigit():
                found[int(number)] = found.get(int(number), False) or rest == MARK
        return found

    async def read(self, model: str, version: int) -> Files:
        """Without what Python leaves beside its sources."""
        prefix = f"{model}/{version}/"
        paths = [path for path in await self._paths(prefix) if "__pycache__/" not in path]
        return {path: await self._get(prefix + path) for path in paths}

    async def write(self, model: str, version: int, files: Files) -> None:
        """Put an own version there, whole, in place of one that was cut off."""
        files = {**files, MARK: b""}
        if self._folder is not None:
            await asyncio.to_thread(_write_folder, self._folder / model, str(version), files)
            return
        await self.remove(model, version)
        for path in sorted(files, key=lambda path: (path.endswith(SUFFIX), path)):
            try:
                await obstore.put_async(self._store, f"{model}/{version}/{path}", files[path])
            except (OSError, BaseError) as error:
                raise _failed("written", error) from None

    async def remove(self, model: str, version: int) -> None:
        """Take an own version away. The model file goes first: what is left of it can not be loaded."""
        if self._folder is not None:
            await asyncio.to_thread(_remove_folder, self._folder / model, str(version))
            return
        prefix = f"{model}/{version}/"
        for path in sorted(await self._paths(prefix), key=lambda path: (path == MARK, path)):
            try:
                await obstore.delete_async(self._store, prefix + path)
            except (FileNotFoundError, NotFoundError):
                continue
            except (OSError, BaseError) as error:
                raise _failed("written", error) from None

    async def _get(self, path: str) -> bytes:
        try:
            return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
        except (OSError, BaseError) as error:
            raise _failed("read", error) from None

    async def _paths(self, prefix: str) -> list[str]:
        """Every file under it, by its path from there."""
        found: list[str] = []
        try:
            async for batch in obstore.list(self._store, prefix):
                found += [entry["path"].removeprefix(prefix) for entry in batch]
        except (OSError, BaseError) as error:
            raise _failed("read", error) from None
        return sorted(found)


def open_repository(url: str) -> Repository:
    """An absolute path, file:///PATH, or s3://BUCKET/PREFIX. Raises RepositoryError."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return Repository(S3Store(parts.netloc, prefix=unquote(parts.path).strip("/") or None))
    folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(url)
    try:
        return Repository(LocalStore(folder), folder)
    except (OSError, BaseError) as error:
        raise _failed("read", error) from None


def with_model(files: Files, model: bytes) -> Files:
    """A version's files with the model file replaced. Raises RepositoryError where that is not plain."""
    names = [path for path in files if path.endswith(SUFFIX)]
    if len(names) != 1:
        has = f"{len(names)} files" if names else "no file"
        raise RepositoryError(
            f"the version that it serves has {has} with the suffix {SUFFIX}, and one is to be replaced"
        )
    return {**files, names[0]: model}


def _write_folder(model: Path, version: str, files: Files) -> None:
    temporary = model / f".{MARK}-{version}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        for path, content in files.items():
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if (model / version).exists():
            shutil.rmtree(model / version)
        os.rename(temporary, model / version)
        sync_folder(model)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _failed("written", error) from None


def _remove_folder(model: Path, version: str) -> None:
    """Renamed first, so that nobody finds a half of it."""
    gone = model / f".{MARK}-{version}"
    try:
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(model / version, gone)
        sync_folder(model)
        shutil.rmtree(gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _failed("written", error) from None


def _failed(what: str, error: Exception) -> RepositoryError:
    """Without the path, which the store's words have."""
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number).lower() if number else type(error).__name__
    return RepositoryError(f"its model repository cannot be {what} ({why})")
