"""Any server of the Open Inference Protocol over gRPC, such as MLServer or KServe's Python server.

Requests go there as they came, but that parameters become what KServe's dialect of the protocol can
carry, and answers with typed contents are put in the raw form that callers get from every place
(`oip.kserve`). Most such servers count nothing; then statistics tell what was sent from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, Literal

from gateway.backends._address import DiscoveringConfig
from gateway.backends._channel import OipChannel
from gateway.backends._oip_counts import OipCounts
from gateway.backends._oip_status import failure_of
from gateway.backends._once import answered_once
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.ports import Health, Permit, Surroundings
from gateway.decide import unknown_model
from oip import kserve
from oip.codec import signature_of, statistics_of, versions_of
from oip.errors import OipError
from oip.reasons import STATUS, Reason
from oip.scan import RequestView, scan_request, scan_response
from oip.signature import Signature
from oip.validate import check_request, checks_fast

JUDGE_S = 1.0
"""How long a server may take to say what its model takes, once it failed to answer a request."""
FAST_BYTES = 2**18
"""Typed answers up to this size are made raw in milliseconds."""
_ANYTHING = Signature((), ())
_VERDICTS = frozenset(
    {
        Reason.UNKNOWN_MODEL,
        Reason.MODEL_UNAVAILABLE,
        Reason.MALFORMED,
        Reason.ENDPOINT_FAILED,
        Reason.NOT_SERVED,
    }
)
"""A server that answers so, asked whether a model is ready, says no: MLServer fails over one it has not."""
_OF_EXCEPTIONS = frozenset({"UNKNOWN", "INTERNAL"})
"""What becomes of an exception in a server, whoever is to blame for it."""


class OipConfig(DiscoveringConfig):
    """`kind: oip`. `url` is grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""

    port_hint: ClassVar[str] = " (MLServer's and KServe's gRPC port is 8081 by default)"

    kind: Literal["oip"]  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen, so narrowing is safe


class OipEndpoint:
    """One server, over a kept channel."""

    kind: ClassVar[str] = "oip"
    params: ClassVar[type[EndpointConfig]] = OipConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, OipConfig)
        self._name = config.name
        self._channel = OipChannel(config, self._failure)
        self._counts = OipCounts()

    async def start(self) -> None:
        """Begin to connect. Raises TidegateError when a TLS file cannot be read."""
        await self._channel.start()

    async def close(self) -> None:
        """End the calls that run, with an AttemptError, and the connection."""
        await self._channel.close()

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        began = time.monotonic()
        asked, sent = self._readable(body)
        try:
            answer = await self._channel.call("ModelInfer", sent, metadata, timeout_s)
            answer, version = await self._in_raw(answer)
        except AttemptError as error:
            took_s = time.monotonic() - began
            self._counts.failed(asked.model_name, asked.model_version, took_s)
            raise await self._judged(error, asked, body, timeout_s - took_s) from None
        self._counts.answered(asked.model_name, version, time.monotonic() - began)
        return answer

    def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        """One answer: the protocol has no configuration that would say of a model that it gives more, and no
        stream outside Triton and MLServer."""
        return answered_once(self, body, metadata, timeout_s, permit)

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        return await self._channel.health(models, timeout_s, not_ready=_VERDICTS)

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelMetadata", model, version, timeout_s)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        return await self._ask("ModelConfig", model, version, timeout_s)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """The server's own; where it keeps none, what was sent to it from here."""
        began = time.monotonic()
        try:
            return await self._ask("ModelStatistics", model, version, timeout_s)
        except AttemptError as error:
            if error.reason is not Reason.NOT_SERVED:
                raise
        metadata = await self._ask("ModelMetadata", model, version, timeout_s - (time.monotonic() - began))
        try:
            told = (version,) if version else self._counts.versions(model) or versions_of(metadata) or ("",)
        except OipError as error:
            raise self._broken(error) from None
        # Messages one after the other are one message with the entries of all.
        return b"".join(statistics_of(model, one, self._counts.counters(model, one)) for one in told)

    async def ready_models(self, timeout_s: float) -> frozenset[str]:
        return await self._channel.ready_models(timeout_s)

    def _readable(self, body: bytes) -> tuple[RequestView, bytes]:
        """What a request asks for, and how it is sent. Raises AttemptError: another place may take the
        parameters that this one's protocol cannot carry."""
        try:
            view = scan_request(body)
        except OipError as error:
            raise self._unsent(error, retryable=False) from None
        try:
            return view, kserve.to_dialect(body)
        except OipError as error:
            raise self._unsent(error, retryable=True) from None

    def _unsent(self, error: OipError, *, retryable: bool) -> AttemptError:
        status = STATUS[error.reason].grpc
        return AttemptError(error.reason, error.message, grpc_status=status, sent=False, retryable=retryable)

    async def _in_raw(self, answer: bytes) -> tuple[bytes, str]:
        """An answer in the form that callers get from every place, and the version in it. Raises
        AttemptError."""
        try:
            if not kserve.is_raw(answer):
                if len(answer) <= FAST_BYTES:
                    answer = kserve.to_raw(answer)
                else:
                    answer = await asyncio.to_thread(kserve.to_raw, answer)
            return answer, scan_response(answer).model_version
        except OipError as error:
            raise self._broken(error) from None

    def _broken(self, error: OipError) -> AttemptError:
        return self._channel.failed(
            error.reason, "gave an answer that cannot be read", sent=True, retryable=True
        )

    async def _judged(
        self, error: AttemptError, asked: RequestView, body: bytes, left_s: float
    ) -> AttemptError:
        """What a failed inference is, once the gateway's own validation has looked at the request: its
        verdict is the same, and in the same words, whatever the server makes of a wrong request."""
        if error.reason is Reason.UNKNOWN_MODEL:
            return _about(error, unknown_model(asked.model_name, asked.model_version))
        failed = error.reason is Reason.ENDPOINT_FAILED and error.grpc_status in _OF_EXCEPTIONS
        if error.reason is not Reason.MALFORMED and not failed:
            return error
        signature = _ANYTHING
        with contextlib.suppress(OipError):
            metadata = await self._ask(
                "ModelMetadata", asked.model_name, asked.model_version, min(left_s, JUDGE_S)
            )
            signature = signature_of(metadata, None)
        try:
            if checks_fast(body, signature):
                check_request(body, signature, asked.model_name)
            else:
                await asyncio.to_thread(check_request, body, signature, asked.model_name)
        except OipError as fault:
            return _about(error, fault)
        return error

    async def _ask(self, rpc: str, model: str, version: str, timeout_s: float) -> bytes:
        """A question about a model. Raises AttemptError, which names an unknown model."""
        try:
            return await self._channel.ask(rpc, model, version, timeout_s)
        except AttemptError as error:
            if error.reason is Reason.UNKNOWN_MODEL:
                raise _about(error, unknown_model(model, version)) from None
            raise

    def _failure(self, status: str, details: str, told: object) -> AttemptError:
        return failure_of(self._name, status, details)


def _about(error: AttemptError, found: OipError) -> AttemptError:
    """A failure as what the gateway itself found to be its cause."""
    unknown = error.reason is Reason.UNKNOWN_MODEL
    reason = error.reason if unknown else found.reason
    return AttemptError(reason, found.message, grpc_status=STATUS[reason].grpc, sent=True, retryable=unknown)
