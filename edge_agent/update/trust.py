"""What is signed, by The Update Framework: python-tuf's client over the hub's metadata call.

The client runs in a thread; what it asks the hub for is fetched on the loop. Its files lie in the folder
and guard against older ones; the root of trust that it begins from is given with the hub, so a folder that
was damaged is set aside and costs nothing but that memory.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tuf.api import exceptions as faults
from tuf.api.metadata import (
    Metadata,
    Root,  # pyright: ignore[reportPrivateImportUsage]
    TargetFile,  # pyright: ignore[reportPrivateImportUsage]
    Timestamp,  # pyright: ignore[reportPrivateImportUsage]
)
from tuf.api.serialization import DeserializationError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from edge_agent.faults import unexpected
from edge_agent.ports import Hub
from edge_agent.ports import Metadata as Ask
from edge_agent.update.disk import is_full
from edge_agent.update.verdict import SignedFile
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

IDLE_S = 30.0
"""A file of the metadata that brings nothing for so long has ended."""
WHOLE_S = 120.0
"""The longest that one file of it may take."""
FIRST_ROOT = "1.root.json"
_BASE = "hub/"
_CONFIG = UpdaterConfig()
_FILES = ("root.json", "timestamp.json", "snapshot.json", "targets.json")
_HISTORY = "root_history"
_log = logging.getLogger("tidegate.agent")
_T = TypeVar("_T")


class Unverified(Exception):
    """What is signed cannot be told; the text is one sentence that says why. Another time it may."""


class Trust:
    """The signed metadata of a device. `folder` is its own; `wall` gives now in UTC, for messages."""

    def __init__(self, folder: Path, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder = folder
        self._wall = wall
        self._turn = asyncio.Lock()
        self._first = b""
        """The first root that was found, where the device was given none."""
        self._current: Updater | Unverified | None = None
        self._current_since = -1.0
        self._thread: asyncio.Future[Any] | None = None
        self._fetcher: _Fetcher | None = None
        self._closed = False

    async def look_up(self, names: Sequence[str], hub: Hub) -> dict[str, SignedFile | None]:
        """What is signed now under each name, None for nothing. Raises Unverified.

        Those who ask while the metadata is on its way share the next that is fetched.
        """
        asked = time.monotonic()
        async with self._turn:
            if self._thread is not None:
                # Left by one who was cancelled; python-tuf's folder takes one client at a time.
                await asyncio.wait((self._thread,))
            if self._closed:
                raise Unverified("This device is stopping.")
            self._fetcher = _Fetcher(hub.metadata, asyncio.get_running_loop())
            if self._current is None or self._current_since < asked:
                began = time.monotonic()
                self._current = await self._refreshed(hub, self._fetcher)
                self._current_since = began
            if isinstance(self._current, Unverified):
                raise self._current
            updater = self._current
            return await self._guarded(self._fetcher, lambda: _signed(updater, names))

    async def close(self) -> None:
        """End what runs. Nothing can be looked up any more."""
        self._closed = True
        if self._fetcher is not None:
            self._fetcher.close()
        if self._thread is not None:
            await asyncio.wait((self._thread,))

    async def _refreshed(self, hub: Hub, fetcher: _Fetcher) -> Updater | Unverified:
        try:
            root = hub.root or self._first or await self._first_root(hub, fetcher)
            updater = await self._guarded(fetcher, lambda: self._client(root, fetcher))
            await self._guarded(fetcher, updater.refresh)
        except Unverified as fault:
            return fault
        return updater

    async def _first_root(self, hub: Hub, fetcher: _Fetcher) -> bytes:
        """The root of a device that was given none when it enrolled, kept as the one to begin from."""
        try:
            root = await fetcher.whole(FIRST_ROOT, _CONFIG.root_max_length)
        except faults.DownloadError as fault:
            raise self._unverified(fault, FIRST_ROOT) from None
        await self._guarded(fetcher, lambda: self._client(root, fetcher))
        try:
            hub.pin(root)
        except OSError:
            raise Unverified("The device's disk cannot be written: its root of trust is not kept.") from None
        self._first = root
        return root

    def _client(self, root: bytes, fetcher: _Fetcher) -> Updater:
        """In the thread. Raises OSError, RepositoryError."""
        if not _sound(self._folder):
            _log.warning(
                "the signed metadata in the state folder is damaged; it is set aside and fetched anew"
            )
            aside = self._folder.with_name(f"{self._folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            self._folder.replace(aside)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.glob("tmp*"):
            left.unlink(missing_ok=True)
        return Updater(str(self._folder), _BASE, fetcher=fetcher, config=_CONFIG, bootstrap=root)

    async def _guarded(self, fetcher: _Fetcher, work: Callable[[], _T]) -> _T:
        """`work` in a thread; it comes to its end there also when whoever waits is cancelled. Raises
        Unverified for whatever it raises."""
        self._thread = asyncio.ensure_future(asyncio.to_thread(work))
        self._thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            return await asyncio.shield(self._thread)
        except Exception as fault:
            raise self._unverified(fault, fetcher.last) from None

    def _unverified(self, fault: Exception, name: str) -> Unverified:
        """Why, in words of the agent's own. `name` is the file that was asked for last."""
        file = f"{shown(name)} of the signed metadata"
        match fault:
            case faults.ExpiredMetadataError():
                file = "The root of the signed metadata" if "root" in str(fault) else file
                text = (
                    f"{file} has expired by the clock of this device, which says {self._wall():%Y-%m-%d %H:%M}"
                    " UTC: either the clock is wrong, or the gateway signs no more."
                )
            case faults.DownloadLengthMismatchError():
                text = f"{file} is longer than it may be."
            case faults.SlowRetrievalError():
                text = f"{file} comes too slowly."
            case faults.DownloadHTTPError():
                text = f"The hub has no {file}."
            case faults.DownloadError():
                text = "The hub cannot give the signed metadata."
            case faults.UnsignedMetadataError():
                text = f"{file} is not signed by a key that this device trusts for it."
            case faults.BadVersionNumberError() if name == "timestamp.json":
                text = f"{file} is older than what this device has seen: it is refused."
            case faults.BadVersionNumberError() | faults.LengthOrHashMismatchError():
                text = f"{file} does not belong to the rest of it."
            case DeserializationError() if not name:
                text = "The root of trust of this device cannot be read: enrol it anew."
            case DeserializationError():
                text = f"{file} cannot be read."
            case faults.RepositoryError():
                text = f"{file} is not valid."
            case OSError() if is_full(fault):
                text = "The device's disk is full: make room for the signed metadata."
            case OSError():
                text = "The device's disk cannot be written."
            case _:
                unexpected(fault, "reading signed metadata")
                text = f"{file} cannot be read."
        return Unverified(text)


class _Fetcher(FetcherInterface):
    """What python-tuf asks for, from the hub; `last` is the name of the last file asked for. Called in the
    client's thread."""

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self.last = ""
        self._ask = ask
        self._loop = loop
        self._closed = False
        self._download: concurrent.futures.Future[bytes] | None = None

    def _fetch(self, url: str) -> Iterator[bytes]:
        self.last = url.removeprefix(_BASE)
        self._download = asyncio.run_coroutine_threadsafe(
            self.whole(self.last, _longest(self.last)), self._loop
        )
        if self._closed:
            self._download.cancel()
        return iter((self._download.result(),))

    async def whole(self, name: str, most: int) -> bytes:
        """A file of at most so many bytes. Raises DownloadError."""
        data = bytearray()
        try:
            async with asyncio.timeout(WHOLE_S), aclosing(self._ask(name)) as pieces:
                while True:
                    async with asyncio.timeout(IDLE_S):
                        piece = await anext(pieces, None)
                    if piece is None:
                        return bytes(data)
                    data += piece
                    if len(data) > most:
                        raise faults.DownloadLengthMismatchError(name)
                    if not piece:
                        raise faults.SlowRetrievalError(name)
        except TimeoutError:
            raise faults.SlowRetrievalError(name) from None
        except OipError as fault:
            if fault.reason is Reason.NOT_FOUND:
                raise faults.DownloadHTTPError(name, 404) from None
            raise faults.DownloadError(name) from None

    def close(self) -> None:
        self._closed = True
        if self._download is not None:
            self._download.cancel()


class Standing(NamedTuple):
    """How a device's trust stands, by its files. `signed_until` None: no metadata has come yet."""

    root: int
    root_until: datetime
    signed_until: datetime | None


def standing(folder: Path, root: bytes) -> Standing | None:
    """None where there is no root of trust yet; `root` is the one that the device was given. Raises
    ValueError for one that cannot be read."""
    newest = root
    with suppress(OSError):
        newest = (folder / "root.json").read_bytes()
    if not newest:
        return None
    try:
        found = Metadata[Root].from_bytes(newest).signed
    except faults.RepositoryError:
        raise ValueError("no root of trust") from None
    try:
        until = Metadata[Timestamp].from_bytes((folder / "timestamp.json").read_bytes()).signed.expires
    except (OSError, faults.RepositoryError):
        until = None
    return Standing(found.version, found.expires, until)


def _signed(updater: Updater, names: Sequence[str]) -> dict[str, SignedFile | None]:
    return {name: _described(updater.get_targetinfo(name)) for name in names}


def _described(found: TargetFile | None) -> SignedFile | None:
    if found is None:
        return None
    custom = found.custom if isinstance(found.custom, dict) else {}
    return SignedFile(f"sha256:{found.hashes.get('sha256', '')}", found.length, custom)


def _longest(name: str) -> int:
    """What python-tuf takes of a file at most; it looks again at what is signed of it."""
    if name == "timestamp.json":
        return _CONFIG.timestamp_max_length
    if name.endswith(".root.json"):
        return _CONFIG.root_max_length
    return _CONFIG.snapshot_max_length if name.endswith(".snapshot.json") else _CONFIG.targets_max_length


def _sound(folder: Path) -> bool:
    """Whether the folder has the shape that python-tuf gives it. What is in its files is python-tuf's to
    doubt, and it fetches anew what it cannot read."""
    history = folder / _HISTORY
    try:
        return (
            (folder.is_dir() or not folder.exists())
            and (history.is_dir() or not history.exists())
            and not any((folder / name).is_dir() for name in _FILES)
            and all(path.is_file() for path in (history.iterdir() if history.exists() else ()))
        )
    except OSError:
        return False
