"""A release brought to the endpoints that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.core.config import Config
from gateway.core.ports import Endpoint, Follower, Standing
from gateway.core.release import Release
from gateway.policy.followers import Followed, followed
from oip.errors import OipError


class Following:
    """`endpoints` are the started ones by name; `standing` has the files' content."""

    def __init__(self, config: Config, endpoints: Mapping[str, Endpoint], standing: Standing) -> None:
        self._config = config
        self._endpoints = endpoints
        self._standing = standing

    async def follow(self, release: Release) -> dict[str, str]:
        """Have every endpoint that follows the model serve the release. By endpoint: "" once nothing else
        answers there, else in a clause why not; what served before serves on then. Doing it again changes
        nothing."""
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
        return await endpoint.follow(to.model, release, content, golden)
