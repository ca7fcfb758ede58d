"""The orders that the hub has from control, and what they come to for one device.

Orders stay as they were while control cannot be asked. Before the first ones no device is told anything,
so that each goes on with what it runs: to be told of nothing would mean to stop it all.
"""

from __future__ import annotations

import asyncio
import logging

from edgewire.v1 import edge_pb2
from gateway.compat import Needs, UnreadableModel, needs
from gateway.core.config import Config
from gateway.core.release import Blob, Orders
from gateway.edgehub.desired import Desires, Known, device_files
from gateway.edgehub.fleet import Told
from gateway.edgehub.ports import Roll
from gateway.registry.devices import Enrolled
from gateway.store.blobs import BlobDamaged, BlobError, BlobMissing, BlobStore
from oip.errors import OipError
from oip.reasons import Reason

ASK_TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class OrderBook:
    """`blobs` is read for what each file needs of a device."""

    def __init__(self, config: Config, roll: Roll, blobs: BlobStore) -> None:
        self._desires = Desires(config)
        self._roll = roll
        self._blobs = blobs
        self._orders: Orders | None = None
        self._looked_at: dict[str, Needs | None] = {}
        self._needs: dict[str, Needs] = {}

    async def load(self) -> None:
        """Ask control. Raises OipError UNAVAILABLE where orders, or a new file in them, cannot be read now;
        then those of before hold."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                orders = await self._roll.orders()
        except OipError:
            raise
        except Exception as error:
            logger.warning("the orders for devices cannot be asked for: %s", type(error).__name__)
            raise OipError(
                Reason.UNAVAILABLE, "The orders for devices are not known at the moment."
            ) from None
        try:
            found = {blob.digest: await self._needed(blob) for blob in device_files(orders.releases.values())}
        except BlobError as error:
            logger.warning("new orders for devices wait: %s", error)
            raise OipError(Reason.UNAVAILABLE, "The artifact store cannot be read at the moment.") from None
        self._orders, self._looked_at = orders, found
        self._needs = {digest: one for digest, one in found.items() if one is not None}

    def desired(self, device: Enrolled, told: Told) -> edge_pb2.Desired | None:
        """What a device is to do; None while that is not known."""
        if self._orders is None:
            return None
        running = {state.model: (state.active_version, state.active_digest) for state in told.models}
        known = Known(device, told.facts, running if told.said else None)
        return self._desires.of(known, self._orders, self._needs)

    def file_for(self, device: Enrolled, told: Told, digest: str) -> Blob | None:
        """A file that the device is to run or try now; None for any other. Raises OipError UNAVAILABLE while
        that is not known."""
        desired = self.desired(device, told)
        if desired is None:
            raise OipError(
                Reason.UNAVAILABLE, "What devices are to run is not known at the moment; try again."
            )
        for entry in (*desired.models, *desired.trials):
            if digest == entry.digest:
                return Blob(digest, entry.size)
            if digest and digest == entry.golden_digest:
                return Blob(digest, entry.golden_size)
        return None

    async def _needed(self, blob: Blob) -> Needs | None:
        """None for a file that says nothing of it: a device that gets it says what is wrong."""
        if blob.digest in self._looked_at:
            return self._looked_at[blob.digest]
        try:
            return await asyncio.to_thread(needs, await self._blobs.get(blob))
        except (BlobDamaged, BlobMissing, UnreadableModel) as error:
            logger.warning("what %s needs of a device is not known: %s", blob.digest, error)
            return None
