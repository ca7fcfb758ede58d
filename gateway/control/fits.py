"""Which devices a release is for, and as what: by their groups, where it may go, and what they can run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from gateway.compat import Needs, UnreadableModel, check, needs
from gateway.control.ports import Fit
from gateway.core.config import Config
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release
from gateway.edgehub.desired import FORMAT, offers
from gateway.edgehub.groups import selects
from gateway.store.blobs import BlobError, BlobStore

logger = logging.getLogger(__name__)


class Fitting:
    """`learn` reads what the files of releases need; a file of which that is not known fits every device,
    which then says itself what is wrong."""

    def __init__(self, config: Config, blobs: BlobStore) -> None:
        self._offers = tuple(offers(config))
        self._blobs = blobs
        self._needs: dict[str, Needs | None] = {}

    async def learn(self, releases: Iterable[Release]) -> None:
        for release in releases:
            for file in release.files.values():
                if file.format != FORMAT or file.blob.digest in self._needs:
                    continue
                try:
                    content = await self._blobs.get(file.blob)
                    self._needs[file.blob.digest] = await asyncio.to_thread(needs, content)
                except (BlobError, UnreadableModel) as error:
                    logger.warning("what %s needs of a device is not known: %s", file.blob.digest, error)
                    self._needs[file.blob.digest] = None

    def fit(self, release: Release, device: DeviceReport) -> Fit | None:
        """As `ports.Fits`."""
        mine = [
            offer for offer in self._offers if selects(offer.group, device.place.site or "", device.labels)
        ]
        for offer in mine:
            if offer.model != release.model:
                continue
            first = next(other for other in mine if other.called == offer.called)
            if first is not offer or offer.pinned is not None:
                continue
            file = release.file_for(offer.group.name, FORMAT)
            if file is None or file.format != FORMAT:
                return Fit(offer.called, "", f"the release has no .{FORMAT} file for {offer.group.name}")
            if not release.may_go(device.place):
                return Fit(offer.called, file.blob.digest, "the release may not go to its place")
            wanted = self._needs.get(file.blob.digest)
            lacks = [] if wanted is None else check(wanted, device.facts)
            return Fit(offer.called, file.blob.digest, "; ".join(lacks))
        return None
