"""The enrolled devices as the hub knows them: the roll, kept in memory.

An unknown credential makes the hub ask the registry, once for all who wait and at most once in
ASK_EVERY_S. So a device that was enrolled elsewhere a moment ago gets in, and guesses cost the
registry nothing. While the registry cannot be asked nobody is called unknown: those in the book get in,
the others are told to come back (UNAVAILABLE), because a device that is told that it is unknown may give
up its enrolment.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping

from gateway.edgehub.ports import Roll
from gateway.registry.devices import Enrolled
from oip.errors import OipError
from oip.reasons import Reason

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class Book:
    """`changed` is called with the names of the devices that are new, other or gone."""

    def __init__(
        self, roll: Roll, changed: Callable[[frozenset[str]], None], clock: Callable[[], float]
    ) -> None:
        self._roll = roll
        self._changed = changed
        self._clock = clock
        self._by_name: dict[str, Enrolled] = {}
        self._by_credential: dict[bytes, Enrolled] = {}
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._failure: OipError | None = None

    @property
    def devices(self) -> Mapping[str, Enrolled]:
        """By name, revoked ones included."""
        return self._by_name

    def get(self, name: str) -> Enrolled | None:
        """The device of this name that may be asked; None for one that is revoked or not enrolled."""
        found = self._by_name.get(name)
        return None if found is None or found.revoked else found

    async def load(self) -> None:
        """Ask the registry for everybody. Raises OipError UNAVAILABLE when it cannot be asked."""
        async with self._asking:
            await self._load()

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        """Redeem a token; the device is in the book at once. Raises OipError."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                enrolled = await self._roll.enrol(token, device, credential_sha256)
        except OipError:
            raise
        except Exception as error:
            raise _unreachable(error) from error
        self._take_in([*(d for d in self._by_name.values() if d.name != enrolled.name), enrolled])
        return enrolled

    async def holder(self, credential_sha256: bytes) -> Enrolled:
        """Whose credential it is. Raises OipError: FORBIDDEN for a revoked device, NOT_FOUND for a
        credential that nobody has, UNAVAILABLE where that cannot be known now."""
        found = self._find(credential_sha256)
        if found is None:
            await self._ask_for_news(self._clock())
            found = self._find(credential_sha256)
        if found is None:
            raise OipError(
                Reason.NOT_FOUND,
                "The credential is not that of an enrolled device: enrol it with a new token.",
            )
        if found.revoked:
            raise OipError(Reason.FORBIDDEN, f"Device {found.name} is revoked: ask the gateway's operator.")
        return found

    async def _ask_for_news(self, since: float) -> None:
        """Ask the registry, unless it was asked after `since`; then its answer of that time holds."""
        async with self._asking:
            if self._asked_at <= since:
                await asyncio.sleep(self._asked_at + ASK_EVERY_S - self._clock())
                await self._load()
            elif self._failure is not None:
                raise self._failure

    def _find(self, credential_sha256: bytes) -> Enrolled | None:
        found = self._by_credential.get(credential_sha256)
        if found is None or not hmac.compare_digest(found.credential_sha256, credential_sha256):
            return None
        return found

    async def _load(self) -> None:
        self._asked_at = self._clock()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                enrolled = await self._roll.enrolled()
        except Exception as error:
            self._failure = _unreachable(error)
            raise self._failure from None
        self._failure = None
        self._take_in(enrolled)

    def _take_in(self, enrolled: Iterable[Enrolled]) -> None:
        before, self._by_name = self._by_name, {device.name: device for device in enrolled}
        self._by_credential = {d.credential_sha256: d for d in self._by_name.values()}
        names = before.keys() | self._by_name.keys()
        changed = frozenset(name for name in names if before.get(name) != self._by_name.get(name))
        if changed:
            self._changed(changed)


def _unreachable(error: Exception) -> OipError:
    logger.warning("the registry of devices cannot be asked: %s", type(error).__name__)
    return OipError(Reason.UNAVAILABLE, "The registry of devices cannot be asked at the moment; try again.")
