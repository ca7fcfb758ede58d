"""A release brought to the endpoints that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from gateway.core.config import Config
from gateway.core.ports import Endpoint, Follower, Standing
from gateway.core.release import Release
from gateway.policy.followers import Followed, followed
from gateway.store.turns import turn
from oip.errors import OipError

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""How soon control is asked again what endpoints are to serve, or an endpoint is told again."""


class Following:
    """`endpoints` are the started ones by name; `standing` tells what they are to serve, and has the files'
    content. A model's releases come one after the other, and replicas of a gateway that have the folder `shared`
    for that bring them to an endpoint one after the other: the first one moves it, others find it there."""

    def __init__(
        self,
        config: Config,
        endpoints: Mapping[str, Endpoint],
        standing: Standing,
        shared: Path | None = None,
    ) -> None:
        self._config = config
        self._endpoints = endpoints
        self._standing = standing
        self._shared = shared
        self._turns: dict[str, asyncio.Lock] = {}
        self._told: set[str] = set()
        """Models that control has told of since the start."""

    async def follow(self, release: Release) -> dict[str, str]:
        """Have every endpoint that follows the model serve the release. By endpoint: "" once nothing else
        answers there, else in a clause why not; what served before serves on then. Doing it again changes
        nothing."""
        self._told.add(release.model)
        async with self._turn(release.model):
            return await self._bring(release)

    async def begin(self) -> None:
        """Bring endpoints to what they are to serve, once after the start, and however long it takes to find
        out; control may have told them before this process was there."""
        pause, left = FIRST_PAUSE_S, {model.name for model in self._config.models}
        while left:
            try:
                releases = await self._standing.releases()
                left &= releases.keys()
                for model in [*left]:
                    async with self._turn(model):
                        if model in self._told or not any((await self._bring(releases[model])).values()):
                            left.discard(model)
            except OipError:
                # Control is not there yet.
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            await asyncio.sleep(pause if left else 0)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _turn(self, model: str) -> asyncio.Lock:
        return self._turns.setdefault(model, asyncio.Lock())

    async def _bring(self, release: Release) -> dict[str, str]:
        found = followed(self._config, release)
        told = await asyncio.gather(*(self._move(one, release) for one in found))
        return {one.endpoint: why for one, why in zip(found, told, strict=True)}

    async def _move(self, to: Followed, release: Release) -> str:
        endpoint = self._endpoints[to.endpoint]
        if to.file is None or not isinstance(endpoint, Follower):
            return to.why_not
        try:
            content = await self._standing.content(to.file.blob)
            golden = None if to.file.golden is None else await self._standing.content(to.file.golden)
        except OipError as error:
            return error.message
        async with turn(self._shared, f"follow-{to.endpoint}"):
            return await endpoint.follow(to.model, release, content, golden)
