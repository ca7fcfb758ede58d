"""An upstream Tidegate: a gateway that passes the request on to places of its own.

The set of places that the data may go to travels with every inference, and the gateways it has
passed; the upstream enforces the first again and ends loops by the second. Both it takes from a known
peer alone, so each call carries this gateway's token. Over anything but loopback the token needs TLS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.backends._address import AddressedConfig
from gateway.backends._channel import OipChannel
from gateway.backends._gateway_status import HEALTH_WORDS, REASON_KEY, failure_of
from gateway.core.config import EndpointConfig
from gateway.core.config.models import MIN_TOKEN
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, Permit, Surroundings
from gateway.core.request import MAX_HOPS
from oip.reasons import STATUS, Reason


class GatewayEndpointConfig(AddressedConfig):
    """`kind: gateway`. `url` is grpcs://HOST:PORT, or grpc://HOST:PORT on loopback."""

    port_hint: ClassVar[str] = " (a gateway's gRPC port is 8081 by default)"

    kind: Literal["gateway"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe
    token: Annotated[str, Field(min_length=MIN_TOKEN)]
    """What this gateway shows as its credential; the upstream has the same text among its `peers`."""

    @field_validator("token")
    @classmethod
    def _header(cls, value: str) -> str:
        # Not a pattern: its error would show what does not match.
        if not all("\x21" <= character <= "\x7e" for character in value):
            raise ValueError("token must hold printable ASCII characters only, without spaces")
        return value

    @model_validator(mode="after")
    def _token_needs_tls(self) -> Self:
        if not self.secure and not _is_loopback(urlsplit(self.url).hostname or ""):
            raise ValueError(
                "the token, and the data, would cross the network unprotected:"
                " give grpcs:// for an upstream that is not on loopback"
            )
        return self

    @property
    def identity(self) -> str:
        """Without the token: a new one makes no other server of it."""
        return super(GatewayEndpointConfig, self.model_copy(update={"token": ""})).identity


class GatewayEndpoint:
    """One upstream gateway, over a kept channel."""

    kind: ClassVar[str] = "gateway"
    params: ClassVar[type[EndpointConfig]] = GatewayEndpointConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, GatewayEndpointConfig)
        self._name = config.name
        gateway = surroundings.config.gateway
        self._question: tuple[tuple[str, str], ...] = (("tidegate-hops", gateway.name),)
        """What goes with questions: without the own name, two gateways would ask each other in turn."""
        self._channel = OipChannel(config, self._failure, (("authorization", f"Bearer {config.token}"),))

    async def start(self) -> None:
        """Begin to connect. Raises TidegateError when a TLS file cannot be read."""
        await self._channel.start()

    async def close(self) -> None:
        """End the calls that run, with an AttemptError, and the connection."""
        await self._channel.close()

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        """Nothing is sent unless the upstream's own place is allowed: it sees every byte, wherever the
        request goes from there."""
        passed_on = _travelling(permit, self._name)
        return await self._channel.call("ModelInfer", body, (*metadata, *passed_on), timeout_s)

    async def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        passed_on = _travelling(permit, self._name)
        async with aclosing(self._channel.stream(body, (*metadata, *passed_on), timeout_s)) as responses:
            async for response in responses:
                yield response

    def under(self, permit: Permit) -> Self:
        asked = copy(self)
        asked._question = tuple(_travelling(permit, self._name))
        return asked

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        return await self._channel.health(models, timeout_s, self._question, HEALTH_WORDS)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelMetadata", model, version, timeout_s, self._question)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelConfig", model, version, timeout_s, self._question)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._channel.ask("ModelStatistics", model, version, timeout_s, self._question)

    def _failure(self, status: str, details: str, told: Sequence[tuple[str, str | bytes]]) -> AttemptError:
        reason = next((value for key, value in told if key == REASON_KEY and isinstance(value, str)), "")
        return failure_of(self._name, status, details, reason)


def _travelling(permit: Permit, endpoint: str) -> Sequence[tuple[str, str]]:
    """What goes with the data, as the upstream's request options. Raises AttemptError where it must
    not be sent at all."""

    def unsent(reason: Reason, words: str) -> AttemptError:
        status = STATUS[reason].grpc
        return AttemptError(
            reason, f"Endpoint {endpoint} {words}.", grpc_status=status, sent=False, retryable=True
        )

    if not permit.allowed.allows(permit.place):
        raise unsent(Reason.PRIVACY, "is not in a place that the request may go to")
    if len(permit.hops) > MAX_HOPS:
        raise unsent(Reason.LOOP, f"would be more than {MAX_HOPS} gateways away from the caller")
    try:
        found = [("tidegate-allowed", permit.allowed.encode())]
    except ValueError:
        raise unsent(
            Reason.PRIVACY, "cannot be told where the request may go: its classes list too many places"
        ) from None
    if permit.hops:
        found.append(("tidegate-hops", ",".join(permit.hops)))
    if permit.idempotent is not None:
        found.append(("tidegate-idempotent", "true" if permit.idempotent else "false"))
    if permit.max_cost is not None:
        found.append(("tidegate-max-cost", format(permit.max_cost, ".12f")))
    return found


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
