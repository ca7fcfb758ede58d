"""Endpoints besides devices that serve what is released: told, and told again until they do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from gateway.core.config import Config
from gateway.core.release import Release
from gateway.policy.followers import followed
from oip.errors import OipError

LOOK_S = 2.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0
"""How soon those that could not be moved are told again."""
logger = logging.getLogger(__name__)

Told = Mapping[str, str]
"""By endpoint: "" where it serves the release, else in a clause why not."""


class Followers:
    """`release` finds a release and raises OipError where there is none; `tell` has the data plane bring
    one to its endpoints and raises OipError where that cannot be asked.

    What each model was brought to last is kept up, through restarts of the data plane as well: it begins
    with what stands, and `follow` changes it.
    """

    def __init__(
        self,
        config: Config,
        release: Callable[[str, str], Release],
        tell: Callable[[Release], Awaitable[Told]],
    ) -> None:
        self._config = config
        self._release = release
        self._tell = tell
        self._wanted: dict[str, str] = {}
        self._told: dict[str, Told] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """By model: how long the pause after the last failure is, and when it ends."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._keeper: asyncio.Task[None] | None = None

    def of(self, release: Release) -> Told:
        """Who follows the release's model: "" where the release can go, else in a clause why not."""
        return {one.endpoint: one.why_not for one in followed(self._config, release)}

    def start(self, standing: Mapping[str, str]) -> None:
        """Begin to bring every model to the version that stands."""
        self._wanted = {**standing, **self._wanted}
        self._keeper = asyncio.create_task(self._keep(), name="keep followers")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def follow(self, model: str, version: str) -> Told:
        """Bring who follows a model to a version, forwards or back, and return when they serve it or will
        not. May be asked again. Raises OipError: no such release, or nobody can be asked now; it is tried
        again all the same."""
        release = self._release(model, version)
        self._wanted[model] = version
        self._told.pop(model, None)
        self._pauses.pop(model, None)
        async with self._turn(model):
            told = await self._tell(release)
            if self._wanted[model] == version:
                self._told[model] = told
            return told

    def wanted(self) -> Mapping[str, Release]:
        """What endpoints are to serve, by model: for a data plane that starts."""
        return {model: self._release(model, version) for model, version in self._wanted.items()}

    def view(self) -> Mapping[str, Told]:
        """What came of it last, by model."""
        return dict(self._told)

    async def _keep(self) -> None:
        while True:
            for model in list(self._wanted):
                async with self._turn(model):
                    length, until = self._pauses.get(model, (FIRST_PAUSE_S, 0.0))
                    if time.monotonic() < until:
                        continue
                    try:
                        await self._bring(model)
                    except OipError as error:
                        logger.debug("followers of %s: %s", model, error.message)
                    except Exception:
                        logger.exception("followers of %s cannot be kept up", model)
                    self._pauses[model] = min(2 * length, LONGEST_PAUSE_S), time.monotonic() + length
            await asyncio.sleep(LOOK_S)

    async def _bring(self, model: str) -> None:
        before, version = self._told.get(model), self._wanted[model]
        release = self._release(model, version)
        if before is not None and before == self.of(release):
            # All serve it that can.
            return
        told = await self._tell(release)
        if self._wanted[model] != version:
            return
        self._told[model] = told
        for endpoint, why in told.items():
            if why and (before or {}).get(endpoint) != why:
                logger.warning("%s does not serve version %s of %s: %s", endpoint, version, model, why)

    def _turn(self, model: str) -> asyncio.Lock:
        return self._turns.setdefault(model, asyncio.Lock())
