"""A Triton server over gRPC."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import PurePath
from typing import ClassVar, Literal

from pydantic import field_validator

from gateway.backends._address import DiscoveringConfig
from gateway.backends._channel import OipChannel
from gateway.backends._triton_status import failure_of
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, Permit, Surroundings
from gateway.core.release import Release
from oip.reasons import Reason

TRIAL_SUFFIX = ".tidegate-trial"
"""Of the name under which a model is loaded beside itself, to be tried."""
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?")


class TritonConfig(DiscoveringConfig):
    """`kind: triton`. `url` is grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""

    port_hint: ClassVar[str] = " (Triton's gRPC port is 8001 by default)"

    not_identity: ClassVar[frozenset[str]] = DiscoveringConfig.not_identity | {"repository"}

    kind: Literal["triton"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe
    repository: str | None = None
    """The server's model repository, where this gateway may write: a folder, relative to this file,
    file:///PATH or s3://BUCKET/PREFIX. Models on it then follow their releases; the server must run with
    `--model-control-mode=explicit`."""

    @field_validator("repository")
    @classmethod
    def _writable(cls, value: str | None) -> str | None:
        if value is None or _BUCKET.fullmatch(value) or value.startswith("file:///"):
            return value
        if "://" in value or not PurePath(value).is_absolute():
            raise ValueError("give the path of a folder, file:///PATH or s3://BUCKET/PREFIX")
        return value

    def follows(self, artifact: str | None) -> tuple[str, ...]:
        return () if self.repository is None else ("onnx",)


class TritonEndpoint:
    """One Triton server, over a kept channel."""

    kind: ClassVar[str] = "triton"
    params: ClassVar[type[EndpointConfig]] = TritonConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, TritonConfig)
        self._name = config.name
        self._channel = OipChannel(config, self._failure)
        self._repository = config.repository
        self._moves = asyncio.Lock()

    async def start(self) -> None:
        """Begin to connect. Raises TidegateError when a TLS file cannot be read."""
        await self._channel.start()

    async def close(self) -> None:
        """End the calls that run, with an AttemptError, and the connection."""
        await self._channel.close()

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        return await self._channel.call("ModelInfer", body, metadata, timeout_s)

    def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        return self._channel.stream(body, metadata, timeout_s)

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        return await self._channel.health(models, timeout_s)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelMetadata", model, version, timeout_s)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelConfig", model, version, timeout_s)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelStatistics", model, version, timeout_s)

    async def load(self, model: str, config: str, timeout_s: float) -> None:
        from oip.codec_operators import load_request

        await self._order("RepositoryModelLoad", load_request(model, config), timeout_s)

    async def unload(self, model: str, dependents: bool, timeout_s: float) -> None:
        from oip.codec_operators import unload_request

        await self._order("RepositoryModelUnload", unload_request(model, dependents), timeout_s)

    async def ready_models(self, timeout_s: float) -> frozenset[str]:
        """Without those that are only tried before they become a release."""
        return _own(await self._channel.ready_models(timeout_s))

    async def repository(self, timeout_s: float) -> frozenset[str]:
        return _own(await self._channel.repository(timeout_s))

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        if self._repository is None:
            return "it has no repository that this gateway may write"
        # It brings the bucket's client, which a Triton that follows nothing does without.
        from gateway.backends._triton_follow import TritonFollower

        async with self._moves:
            mover = TritonFollower(self._channel, self._repository)
            return await mover.follow(model, release, content, golden)

    async def _order(self, rpc: str, request: bytes, timeout_s: float) -> None:
        """One of the repository's calls, when no model is being moved to a release. Raises AttemptError."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(ends):
                await self._moves.acquire()
        except TimeoutError:
            raise self._channel.failed(
                Reason.OVERLOADED, "is still bringing a release to its models", sent=False, retryable=False
            ) from None
        try:
            await self._channel.call(rpc, request, (), ends - loop.time())
        finally:
            self._moves.release()

    def _failure(self, status: str, details: str, told: object) -> AttemptError:
        return failure_of(self._name, status, details)


def _own(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.endswith(TRIAL_SUFFIX))
