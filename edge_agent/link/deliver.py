"""Delivers the spool to the hub that has welcomed the device, oldest first, on connections of its own.

A call that failed is made again as it was, later and later; what a hub has counted is forgotten. The hub
counts a record once, so nothing is lost or counted twice, whichever end dies in the middle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import Random
from typing import Any

import grpc

from edge_agent.analytics.wall import deliverable
from edge_agent.bucket import Bucket
from edge_agent.faults import unexpected
from edge_agent.link import client
from edge_agent.link.client import CallEnded
from edge_agent.link.dialing import Dialing, Setback
from edge_agent.spool import Spool
from edgewire.places import Place
from edgewire.v1 import edge_pb2

logger = logging.getLogger(__name__)

BATCH_RECORDS = 64
BATCH_BYTES = 500 * 1024
BYTES_PER_S = 256 * 1024
"""So that a spool of days leaves room on the link for what it is there for."""
DELIVER_TIMEOUT_S = 60.0
MAX_PAUSE_S = 600.0


class Deliverer:
    """`spool`'s way to the hub. `rng` spreads what is tried again."""

    def __init__(self, spool: Spool, credential: str, rng: Random, bytes_per_s: float = BYTES_PER_S) -> None:
        self._spool = spool
        self._credential = credential
        self._rng = rng
        self._bucket = Bucket(bytes_per_s, BATCH_BYTES, BATCH_BYTES, time.monotonic())
        self._told = ""

    async def run(self, hub: str, there: Place | None) -> None:
        """Deliver to `hub`, whose gateway is `there`, until it is cancelled."""
        pace = Dialing((hub,), self._rng)
        while True:
            await self._spool.grown.wait()
            try:
                async with client.channel_to(hub) as stub:
                    while await self._deliver(stub, there):
                        pace = Dialing((hub,), self._rng)
                        self._told = ""
            except CallEnded as ended:
                self._tell(f"the hub at {hub} {ended.words}; what was counted is kept, and delivered later")
                await asyncio.sleep(pace.failed(ended.setback, ended.hint_s))
            except Exception as error:
                unexpected(error, "delivering what was counted")
                await asyncio.sleep(pace.failed(Setback.UNKNOWN))

    async def _deliver(self, stub: Any, there: Place | None) -> bool:
        """One batch; False when there is none. Raises CallEnded."""
        await asyncio.sleep(self._bucket.wait_s(time.monotonic()))
        batch = await self._spool.front(BATCH_RECORDS, BATCH_BYTES)
        if batch is None:
            return False
        records = [deliverable(held.record, held.place, there) for held in batch.records]
        request = edge_pb2.DeliverRequest(spool=batch.spool, records=records)
        self._bucket.take(request.ByteSize(), time.monotonic())
        try:
            reply = await stub.Deliver(
                request, timeout=DELIVER_TIMEOUT_S, metadata=client.bearer(self._credential)
            )
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        await self._spool.forget(batch, reply.counted)
        if reply.counted < records[0].number:
            raise CallEnded(Setback.UNKNOWN, 0.0, "counted nothing of what it was sent")
        await asyncio.sleep(min(reply.pause_ms / 1000, MAX_PAUSE_S))
        return True

    def _tell(self, message: str) -> None:
        if message != self._told:
            logger.warning("%s", message)
            self._told = message


def _ended(error: grpc.aio.AioRpcError) -> CallEnded:
    ended = client.call_ended(error)
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return CallEnded(Setback.REVOKED, ended.hint_s, "takes nothing of what a device counts")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return CallEnded(Setback.UNKNOWN, ended.hint_s, "refused what this device has counted")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return CallEnded(ended.setback, ended.hint_s, "takes what others have counted first")
        case _:
            return ended
