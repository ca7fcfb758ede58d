"""A Triton server over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from gateway.backends._address import AddressedConfig
from gateway.backends._channel import OipChannel
from gateway.backends._triton_status import failure_of
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, Permit, Surroundings


class TritonConfig(AddressedConfig):
    """`kind: triton`. `url` is grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""

    port_hint: ClassVar[str] = " (Triton's gRPC port is 8001 by default)"

    kind: Literal["triton"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe


class TritonEndpoint:
    """One Triton server, over a kept channel."""

    kind: ClassVar[str] = "triton"
    params: ClassVar[type[EndpointConfig]] = TritonConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, TritonConfig)
        self._name = config.name
        self._channel = OipChannel(config, self._failure)

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

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        return await self._channel.health(models, timeout_s)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelMetadata", model, version, timeout_s)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelConfig", model, version, timeout_s)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelStatistics", model, version, timeout_s)

    def _failure(self, status: str, details: str, told: object) -> AttemptError:
        return failure_of(self._name, status, details)
