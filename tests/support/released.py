"""A gateway's state directory with releases in it, and a device's view of what is signed there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import Updater
from tuf.ngclient.fetcher import FetcherInterface

from gateway.control.releases import Releases
from gateway.core.config import Config
from gateway.core.release import Orders
from gateway.store.blobs import BlobStore
from gateway.store.database import migrate, open_database


@dataclass(slots=True)
class Shop:
    """The store and the releases of one state directory."""

    state_dir: Path
    blobs: BlobStore
    releases: Releases

    def orders(self, **more: Any) -> Orders:
        return Orders(**self.releases.snapshot(), **more)

    @property
    def metadata(self) -> Path:
        return self.state_dir / "artifacts" / "metadata"


@asynccontextmanager
async def shop_of(config: Config, state_dir: Path, **options: Any) -> AsyncIterator[Shop]:
    """Releases as control starts them."""
    migrate(state_dir)
    engine = open_database(state_dir)
    blobs = BlobStore(config.artifacts, state_dir)
    shop = Shop(state_dir, blobs, Releases(engine, blobs, state_dir, **options))
    try:
        await shop.releases.start(config)
        yield shop
    finally:
        await engine.dispose()


class _Files(FetcherInterface):
    """Metadata from a folder, as a device asks for it by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _fetch(self, url: str) -> Any:
        try:
            return iter([(self._folder / Path(urlsplit(url).path).name).read_bytes()])
        except FileNotFoundError:
            raise DownloadHTTPError(f"no {url}", 404) from None


class Client:
    """A device's reader of signed metadata: python-tuf's own, with a cache of its own."""

    def __init__(self, root: bytes, metadata: Path, cache: Path) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self._cache = cache
        self._metadata = metadata
        self._root: bytes | None = root

    def refresh(self) -> Updater:
        """All roles, checked. Raises what python-tuf raises."""
        updater = Updater(
            str(self._cache), "http://store/metadata", fetcher=_Files(self._metadata), bootstrap=self._root
        )
        self._root = None
        updater.refresh()
        return updater

    def cached(self, name: str) -> bytes:
        """A role's file as it was last read and checked."""
        return (self._cache / name).read_bytes()

    def custom(self, name: str) -> Mapping[str, Any] | None:
        """The signed data of a target, as it is now; None where there is no such target."""
        info = self.refresh().get_targetinfo(name)
        return None if info is None else info.custom


async def refreshed(client: Client) -> Updater:
    return await asyncio.to_thread(client.refresh)
