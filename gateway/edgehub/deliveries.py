"""What devices have counted, passed on to control: a few at a time, so that devices that come with spools of
days never delay what others say on their streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise

from edgewire.v1 import edge_pb2
from gateway.edgehub.ports import Roll
from gateway.registry.devices import Enrolled
from oip.errors import OipError
from oip.reasons import Reason

AT_ONCE = 4
PER_S = 200.0
"""Deliveries a second, of all devices together: who delivers is asked for a pause in which the others have
their turn, and the streams theirs."""
MAX_RECORDS = 64
SPOOL_CHARS = frozenset("0123456789abcdef")
logger = logging.getLogger(__name__)


class Busy(Exception):
    """There is no room for one more now; the text is a sentence. `again_ms`: when to come back."""

    def __init__(self, text: str, again_ms: int) -> None:
        super().__init__(text)
        self.again_ms = again_ms


class Deliveries:
    """Lives on the hub's loop."""

    def __init__(self, roll: Roll, clock: Callable[[], float]) -> None:
        self._roll = roll
        self._clock = clock
        self._next = 0.0
        """When those who delivered last have had their turn."""
        self._under_way: set[str] = set()

    async def take(self, device: Enrolled, request: edge_pb2.DeliverRequest) -> edge_pb2.DeliverReply:
        """Have a device's records counted. Raises Busy, and OipError: MALFORMED for what is no report,
        UNAVAILABLE where control cannot be asked; nothing of it is counted then that is not counted once
        when it comes again."""
        if (fault := _fault(request)) is not None:
            raise OipError(Reason.MALFORMED, fault)
        if device.name in self._under_way:
            raise Busy(f"Device {device.name} delivers already.", 1000)
        if len(self._under_way) >= AT_ONCE:
            raise Busy("Too many devices deliver at once.", 500)
        self._under_way.add(device.name)
        try:
            answer = await self._roll.deliver(device, request.SerializeToString())
            reply = edge_pb2.DeliverReply.FromString(answer)
        except OipError:
            raise
        except Exception as error:
            logger.warning("what a device counted cannot be passed on: %s", type(error).__name__)
            raise OipError(Reason.UNAVAILABLE, "Nothing can be counted at the moment; try again.") from None
        finally:
            self._under_way.discard(device.name)
        now = self._clock()
        self._next = max(now, self._next) + 1 / PER_S
        reply.pause_ms = max(reply.pause_ms, round((self._next - now) * 1000))
        return reply


def _fault(request: edge_pb2.DeliverRequest) -> str | None:
    """Why this is no report, in one sentence. Its size is bounded as that of every message is."""
    if len(request.spool) != 32 or not SPOOL_CHARS.issuperset(request.spool):
        return "The spool is not called by 32 lower-case hex digits."
    if not 1 <= len(request.records) <= MAX_RECORDS:
        return f"A delivery has 1 to {MAX_RECORDS} records, not {len(request.records)}."
    numbers = [record.number for record in request.records]
    if numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
        return "The records are not in ascending order of their numbers, from 1."
    return None
