"""Which devices a release is for, and as what: by their groups, where it may go, and what they can run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from gateway.compat import Needs, UnreadableModel, needs
from gateway.control.ports import Fit
from gateway.core.config import Config
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release
from gateway.edgehub.desired import device_files, offers
from gateway.edgehub.groups import selects
from gateway.store.blobs import BlobDamaged, BlobError, BlobMissing, BlobStore

READ_S = 10.0
"""How long the store may take to give a file: rollouts wait for it."""
AGAIN_S = 30.0
"""Until a store that did not give a file is asked again."""
logger = logging.getLogger(__name__)


class Fitting:
    """`learn` reads what the files of releases need; a file of which that is not known fits every device,
    which then says itself what is wrong. `clock` gives monotonic seconds."""

    def __init__(self, config: Config, blobs: BlobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._offers = tuple(offers(config))
        self._blobs = blobs
        self._clock = clock
        self._needs: dict[str, Needs | None] = {}
        self._again_at = float("-inf")

    async def learn(self, releases: Iterable[Release]) -> None:
        for blob in device_files(releases):
            if blob.digest in self._needs or self._clock() < self._again_at:
                continue
            try:
                async with asyncio.timeout(READ_S):
                    content = await self._blobs.get(blob)
                self._needs[blob.digest] = await asyncio.to_thread(needs, content)
            except (BlobDamaged, BlobMissing, UnreadableModel) as error:
                logger.warning("what %s needs of a device is not known: %s", blob.digest, error)
                self._needs[blob.digest] = None
            except (BlobError, TimeoutError) as error:
                why = str(error) or "the store does not answer"
                logger.warning("what %s needs of a device is not known yet: %s", blob.digest, why)
                self._again_at = self._clock() + AGAIN_S

    def fit(self, release: Release, device: DeviceReport, *, pinned: bool = False) -> Fit | None:
        """As `ports.Fits`. `pinned`: also of a device that a pinned variant tells what to run."""
        mine = [
            offer for offer in self._offers if selects(offer.group, device.place.site or "", device.labels)
        ]
        for offer in mine:
            if offer.model != release.model:
                continue
            first = next(other for other in mine if other.called == offer.called)
            if first is not offer or (offer.pinned is not None and not pinned):
                continue
            file = offer.file_of(release)
            needs = {digest: one for digest, one in self._needs.items() if one is not None}
            if not device.connected and not device.facts:
                # What it can run is not known before it comes.
                needs = {}
            why_not = offer.why_not(release, device.place, device.facts, needs)
            return Fit(offer.called, "" if file is None else file.blob.digest, "; ".join(why_not))
        return None
