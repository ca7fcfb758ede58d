"""The releases of every model, and the one that makes and changes them.

The database is the truth. A change is: content into the store, one transaction, the signed metadata. A
kill at any point leaves either nothing but content that no release names, or a release that is signed at
the next start; until then devices refuse it, because nobody has signed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.control.from_file import Difference, taken_in
from gateway.control.shelf import Shelf, added, judged, next_version, ordered_back, stood, withdrawn
from gateway.control.signing import Signing, SigningError
from gateway.control.uploads import fault_of
from gateway.core.config import Config
from gateway.core.release import ANYWHERE, FORMATS, Blob, Reference, Release, ReleaseFile, signed_slot
from gateway.edgehub.desired import offers
from gateway.store.blobs import BlobError, BlobStore
from gateway.store.releases import read_releases, read_standing, write_release, write_standing
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

UPLOAD_S = 3600.0
"""How long content may lie in the store before a release names it."""
SWEEP_EVERY_S = 86_400.0
Content = bytes | Blob
"""What a file holds, or what it is called in the store already."""
Files = Mapping[str, tuple[str, Content, Content | None]]
"""By slot: format, content, golden vectors."""
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
T = TypeVar("T")
logger = logging.getLogger(__name__)


class Releases:
    """Every release and what stands, in memory as in the database. Reading is immediate; whatever changes
    something returns once it is on disk and signed. Failures are OipError: CONFLICT for what is not allowed,
    UNAVAILABLE where database, store or keys fail. What is recorded and could not be signed is signed by
    `keep` or at the next start."""

    def __init__(
        self, engine: AsyncEngine, blobs: BlobStore, state_dir: Path, wall: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._signing = Signing(blobs, state_dir, self._named, wall)
        self._wall = wall
        self._lock = asyncio.Lock()
        self._shelf = Shelf()
        self._differences: tuple[Difference, ...] = ()
        self._config: Config | None = None
        self._uploads: dict[Blob, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._swept_at = float("-inf")

    async def start(self, config: Config) -> None:
        """Read what there is, take in the files of a configuration that are not known yet, and sign. Raises
        ArtifactError, BlobError, SigningError and OipError when it cannot be done."""
        async with self._lock:
            self._config = config
            await self._signing.start()
            async with self._turn() as connection:
                shelf = Shelf(await read_releases(connection), await read_standing(connection))
            self._shelf = shelf
            taken, differences = await taken_in(config, shelf, self._blobs)
            await self._record(taken)
            self._differences = differences
            await self._signing.publish(self._shelf.releases.values())

    def get(self, model: str, version: str) -> Release:
        """Raises OipError NOT_FOUND."""
        return self._shelf.get(model, version)

    def of(self, model: str) -> tuple[Release, ...]:
        """Every release of a model, by order."""
        return self._shelf.of(model)

    def standing(self) -> Mapping[str, str]:
        """The version that stands, by model."""
        return dict(self._shelf.standing)

    def snapshot(self) -> dict[str, Any]:
        """`releases` and `standing` as `Orders` has them."""
        return {"releases": dict(self._shelf.releases), "standing": dict(self._shelf.standing)}

    def differences(self) -> tuple[Difference, ...]:
        """Where what is released is not what the configuration names, as of the last start."""
        return self._differences

    def root(self) -> bytes:
        """The root of trust, as devices get it when they enrol."""
        return self._signing.root()

    async def upload(self, content: bytes) -> Blob:
        """Store a file that a release is to name within UPLOAD_S."""
        if not content:
            raise OipError(Reason.MALFORMED, "the file is empty")
        try:
            blob = await self._blobs.put(content)
        except BlobError as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None
        self._uploads[blob] = self._wall()
        return blob

    async def uploaded(self, digest: str) -> Blob | None:
        """A stored file by its digest."""
        try:
            return await self._blobs.find(digest)
        except BlobError as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None

    async def add(
        self,
        model: str,
        files: Files,
        *,
        places: str = ANYWHERE,
        reference: Mapping[str, Reference] | None = None,
        metrics: Mapping[str, float] | None = None,
        source: str,
        version: str | None = None,
    ) -> Release:
        """A new candidate. `files` by slot: format, content, golden vectors; `version` None takes the next
        number. The same version with the same files answers the release that is there; with others it is
        refused (CONFLICT). Raises OipError UNKNOWN_MODEL, and MALFORMED for a file that is no such model."""
        if self._config is None or all(model != known.name for known in self._config.models):
            raise OipError(Reason.UNKNOWN_MODEL, f"the configuration has no model {shown(model)}")
        if version is not None and _VERSION.fullmatch(version) is None:
            raise OipError(Reason.MALFORMED, f"{shown(version)} is no version: give a whole number from 1")
        if not files:
            raise OipError(Reason.MALFORMED, "a release needs a file")
        _refuse_slots(self._config, files)

        async def work() -> Release:
            stored = {slot: await self._stored(slot, *file) for slot, file in files.items()}
            number = version or next_version(self._shelf, model)
            await self._change(
                added(
                    self._shelf,
                    model,
                    number,
                    stored,
                    places=places,
                    reference=reference,
                    metrics=metrics,
                    source=source,
                )
            )
            return self._shelf.get(model, number)

        return await self._alone(work)

    async def judged(
        self, model: str, version: str, passed: bool, metrics: Mapping[str, float] | None = None
    ) -> Release:
        """The gate's word on a candidate."""
        return await self._changed(
            model, version, lambda shelf: judged(shelf, model, version, passed, metrics)
        )

    async def stand(self, model: str, version: str) -> Release:
        """Make a version the one that serves. One older than what stands is ordered back with it."""
        return await self._changed(model, version, lambda shelf: stood(shelf, model, version))

    async def order_back(self, model: str, version: str) -> Release:
        """Let devices return to a version from any other of the model."""
        return await self._changed(model, version, lambda shelf: ordered_back(shelf, model, version))

    async def withdraw(self, model: str, version: str) -> Release:
        """Offer a version to nobody any more. What stands cannot be withdrawn."""
        return await self._changed(model, version, lambda shelf: withdrawn(shelf, model, version))

    async def keep(self, now: float) -> None:
        """Renew what expires, sign what could not be signed before, and once a day remove content that no
        release names. To be called every few minutes; `now` in seconds since the epoch."""

        async def work() -> None:
            await self._sign()
            try:
                await self._signing.keep(now)
                if now - self._swept_at >= SWEEP_EVERY_S:
                    self._uploads = {blob: at for blob, at in self._uploads.items() if now - at < UPLOAD_S}
                    await self._blobs.sweep({*self._blobs_named(), *self._uploads}, now - UPLOAD_S)
                    self._swept_at = now
            except (BlobError, SigningError) as error:
                raise OipError(Reason.UNAVAILABLE, str(error)) from None

        await self._alone(work)

    async def _changed(self, model: str, version: str, rule: Callable[[Shelf], Shelf]) -> Release:
        async def work() -> Release:
            await self._change(rule(self._shelf))
            return self._shelf.get(model, version)

        return await self._alone(work)

    async def _change(self, shelf: Shelf) -> None:
        await self._record(shelf)
        await self._sign()

    async def _record(self, shelf: Shelf) -> None:
        """What differs, in one transaction."""
        before = self._shelf
        async with self._turn() as connection:
            for key, release in shelf.releases.items():
                if before.releases.get(key) != release:
                    await write_release(connection, release)
            for model, version in shelf.standing.items():
                if before.standing.get(model) != version:
                    await write_standing(connection, model, version)
        self._shelf = shelf

    async def _sign(self) -> None:
        try:
            await self._signing.publish(self._shelf.releases.values())
        except (BlobError, SigningError) as error:
            logger.error("releases could not be signed: %s", error)
            text = f"the change is recorded and not signed yet, and is signed as soon as that works: {error}"
            raise OipError(Reason.UNAVAILABLE, text) from None

    async def _stored(self, slot: str, format: str, content: Content, golden: Content | None) -> ReleaseFile:
        """A new release's file, in the store. Raises OipError MALFORMED for one that is not what it says."""
        blob, raw = await self._content(content)
        vectors, packed = (None, None) if golden is None else await self._content(golden)
        fault = await asyncio.to_thread(fault_of, format, raw, packed)
        if fault:
            raise OipError(Reason.MALFORMED, f"the file for {shown(slot)}: {fault}")
        return ReleaseFile(format, blob, vectors)

    async def _content(self, content: Content) -> tuple[Blob, bytes]:
        try:
            if isinstance(content, Blob):
                if not await self._blobs.has(content):
                    raise OipError(
                        Reason.NOT_FOUND, f"no artifact {shown(content.digest)} was uploaded, or too long ago"
                    )
                return content, await self._blobs.get(content)
            return await self._blobs.put(content), content
        except BlobError as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None

    def _blobs_named(self) -> Iterator[Blob]:
        for release in self._shelf.releases.values():
            for file in release.files.values():
                yield file.blob
                if file.golden is not None:
                    yield file.golden

    def _named(self, release: Release, slot: str) -> Iterable[tuple[str, str]]:
        """By the names that devices call the model, each of which is a target of its own."""
        assert self._config is not None
        called = dict.fromkeys(
            offer.called
            for offer in offers(self._config)
            if offer.model == release.model and slot in (offer.group.name, *FORMATS)
        )
        return [(name, signed_slot(release.model, name, slot)) for name in called or (release.model,)]

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """One change after the other, and each to its end even when nobody waits for it any more: memory
        must not fall behind the database."""

        async def turn() -> T:
            async with self._lock:
                return await work()

        task = asyncio.create_task(turn(), name="change releases")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            logger.error("the database of releases failed: %s", getattr(error, "orig", None) or error)
            text = f"the releases cannot be read or written ({type(error).__name__}); try again"
            raise OipError(Reason.UNAVAILABLE, text) from None


def _refuse_slots(config: Config, files: Files) -> None:
    endpoints = {endpoint.name for endpoint in config.endpoints}
    for slot, (format, _, golden) in files.items():
        if format not in FORMATS:
            raise OipError(
                Reason.MALFORMED, f"{shown(format)} is no format: it is one of {', '.join(FORMATS)}"
            )
        if slot != format and (slot in FORMATS or slot not in endpoints):
            raise OipError(
                Reason.MALFORMED,
                f"{shown(slot)} is neither the file's format nor an endpoint: name one of them",
            )
        if format == "tflite" and golden is None:
            raise OipError(
                Reason.MALFORMED,
                f"the file for {shown(slot)} has no golden vectors: no device runs a new .tflite without them",
            )
