"""A group of enrolled devices, reached over the hub that holds their streams.

Which device an attempt goes to is decided before it gets here: the permit names it, and the set of
allowed places travels on, so that hub and device hold to it by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gateway.backends._once import answered_once
from gateway.backends._unary import answer_of, leave
from gateway.core.config import EndpointConfig
from gateway.core.errors import AttemptError
from gateway.core.fleet import Group
from gateway.core.ports import Health, ModelHealth, Permit, RemoteSpan, Surroundings
from gateway.edgehub.groups import EdgeConfig
from oip.errors import OipError
from oip.reasons import STATUS, Reason
from oip.scan import scan_request

if TYPE_CHECKING:
    from edgewire.v1 import edge_pb2, inside_pb2
    from gateway.backends._hub import HubLink

CONNECT_WAIT_S = 1.0
"""Longest that a call waits for the first try to reach the hub."""
GUARD_S = 0.2
"""How long after its deadline a call that the hub has not ended is ended here."""

_ELSEWHERE = frozenset(
    {
        Reason.UNAVAILABLE,
        Reason.MODEL_UNAVAILABLE,
        Reason.OVERLOADED,
        Reason.DRAINING,
        Reason.UNKNOWN_MODEL,
        Reason.UNKNOWN_VERSION,
        Reason.PRIVACY,
    }
)
"""Reasons of one device that another one need not share."""
_VERDICTS = frozenset({Reason.MALFORMED, Reason.TOO_LARGE, Reason.NOT_SERVED, Reason.DEADLINE})
"""Reasons that are passed on and hold anywhere. All others are a device's own failure."""


class EdgeEndpoint:
    """A device group; see `Endpoint`."""

    kind: ClassVar[str] = "edge"
    params: ClassVar[type[EndpointConfig]] = EdgeConfig

    def __init__(self, config: EndpointConfig, surroundings: Surroundings) -> None:
        assert isinstance(config, EdgeConfig)
        import grpc.aio

        from edgewire.v1 import inside_pb2
        from gateway.backends import _fleet, _hub
        from gateway.backends._device_models import DeviceModels

        self._grpc = grpc
        self._inside_pb2 = inside_pb2
        self._hub = _hub
        self._config = config
        self._surroundings = surroundings
        self._members = _fleet.Members(config)
        self._group = Group()
        self._models = DeviceModels(config.name, self._members)
        self._link: HubLink | None = None
        self._calls: set[Any] = set()

    async def start(self) -> None:
        """Begin to listen to the hub; without one (`Surroundings.hub` "") the group stays down."""
        if self._surroundings.hub:
            self._link = self._hub.link_to(self._surroundings.hub)
            self._link.listen(self._changed)

    async def close(self) -> None:
        """End the calls that run, with an AttemptError. What gRPC still has to say of them must find this
        loop running, so their ends are waited for."""
        link, self._link = self._link, None
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await self._hub.ended(*calls)
        if link is not None:
            link.leave(self._changed)
            await self._hub.release(self._surroundings.hub)

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if timeout_s <= 0:
            raise self._failed(Reason.DEADLINE, "was given no time", sent=False)
        link = await self._connected(timeout_s)
        left = began + timeout_s - loop.time()
        request = self._request(body, metadata, left, permit)
        reply = await self._forward(link, request, left)
        ended = loop.time()
        for span in _placed(reply.spans, began, ended):
            permit.tell(span)
        failure = None if not reply.reason else self._failure(reply)
        self._count(body, ended - began, failure)
        if failure is not None:
            raise failure
        return reply.response

    def stream(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float | None, permit: Permit
    ) -> AsyncGenerator[bytes]:
        return answered_once(self, body, metadata, timeout_s, permit)

    async def health(self, models: Sequence[tuple[str, str]], timeout_s: float) -> Health:
        """Up means that the hub answers; a model is ready when some device is. `detail` also names
        devices that tell other metadata of a model than most do."""
        link = self._link
        if link is None:
            return Health(up=False, detail="there is no edge hub here")
        began = asyncio.get_running_loop().time()
        try:
            await link.check(timeout_s)
        except self._grpc.aio.AioRpcError as error:
            late = error.code() is self._grpc.StatusCode.DEADLINE_EXCEEDED
            detail = f"did not answer within {timeout_s:g} s" if late else "the edge hub cannot be reached"
            return Health(up=False, detail=detail)
        left = began + timeout_s - asyncio.get_running_loop().time()
        if not link.up and not await link.connected(left):
            return Health(up=False, detail="the edge hub has not told of its devices yet")
        ready = self._group.ready
        return Health(
            up=True,
            detail="; ".join(filter(None, (self._models.odd(*model) for model in models))),
            models=tuple(ModelHealth(*model, bool(ready.get(model))) for model in models),
        )

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        """What most devices tell."""
        await self._connected(timeout_s)
        return self._models.metadata(model, version)

    async def model_config(self, model: str, version: str, timeout_s: float) -> bytes:
        """What most devices tell, or else what their metadata implies."""
        await self._connected(timeout_s)
        return self._models.config(model, version)

    async def statistics(self, model: str, version: str, timeout_s: float) -> bytes:
        """Of the requests that this process sent: successes and failures, and the time they took here."""
        await self._connected(timeout_s)
        return self._models.statistics(model, version)

    def _changed(self, names: Collection[str]) -> None:
        link = self._link
        if link is not None and self._members.take_in(names, link.fleet):
            self._group = self._members.group()
            self._surroundings.fleet(self._config.name, self._group)

    async def _connected(self, timeout_s: float) -> HubLink:
        """Raises AttemptError (not sent) when the hub is not there."""
        link = self._link
        if link is None:
            words = "is closed" if self._surroundings.hub else "has no edge hub here"
            raise self._failed(Reason.UNAVAILABLE, words, sent=False)
        if not link.up and not await link.connected(min(max(timeout_s, 0) / 2, CONNECT_WAIT_S)):
            raise self._failed(Reason.UNAVAILABLE, "cannot reach its edge hub", sent=False)
        return link

    def _request(
        self, body: bytes, metadata: Iterable[tuple[str, str]], left_s: float, permit: Permit
    ) -> inside_pb2.ForwardRequest:
        if left_s <= 0:
            raise self._failed(Reason.DEADLINE, "was given no time", sent=False)
        if not permit.device:
            raise self._failed(Reason.MODEL_UNAVAILABLE, "has no device chosen for this", sent=False)
        try:
            return self._inside_pb2.ForwardRequest(
                device=permit.device,
                request=body,
                timeout_ms=max(1, round(left_s * 1000)),
                allowed=permit.allowed.encode(),
                traceparent=next((value for key, value in metadata if key == "traceparent"), ""),
            )
        except ValueError:  # UnicodeEncodeError is one
            raise self._failed(
                Reason.INTERNAL, "cannot be told where this request may go", sent=False
            ) from None

    async def _forward(
        self, link: HubLink, request: inside_pb2.ForwardRequest, left_s: float
    ) -> inside_pb2.ForwardReply:
        """Raises AttemptError, and nothing else but cancellation."""
        call = None
        try:
            call = link.hub.Forward(request, timeout=left_s + GUARD_S)
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            return await answer_of(call)
        except self._grpc.aio.AioRpcError as error:
            raise self._lost(error) from None
        except self._grpc.aio.UsageError:
            raise self._failed(Reason.UNAVAILABLE, "is closed", sent=False) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Closing cancels the calls, not the tasks that wait for them.
            raise self._failed(Reason.UNAVAILABLE, "was closed", sent=True) from None
        finally:
            if call is not None:
                leave(call)

    def _lost(self, error: Any) -> AttemptError:
        """The call to the hub itself failed."""
        if error.code() is self._grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._failed(Reason.DEADLINE, "did not answer in time", sent=True)
        if "failed to connect" in (error.details() or ""):
            return self._failed(Reason.UNAVAILABLE, "cannot reach its edge hub", sent=False)
        return self._failed(Reason.UNAVAILABLE, "lost its edge hub before the answer came", sent=True)

    def _failure(self, reply: inside_pb2.ForwardReply) -> AttemptError:
        reason = Reason(reply.reason)
        if reason not in _ELSEWHERE | _VERDICTS:
            reason = Reason.ENDPOINT_FAILED
        return AttemptError(
            reason,
            reply.message,
            grpc_status=STATUS[reason].grpc,
            sent=reply.sent,
            retryable=reason in _ELSEWHERE,
        )

    def _failed(self, reason: Reason, words: str, *, sent: bool) -> AttemptError:
        return AttemptError(
            reason,
            f"Endpoint {self._config.name} {words}.",
            grpc_status=STATUS[reason].grpc,
            sent=sent,
            retryable=reason in _ELSEWHERE,
        )

    def _count(self, body: bytes, took_s: float, failure: AttemptError | None) -> None:
        try:
            view = scan_request(body)
        except OipError:
            return
        self._models.count(view.model_name, took_s, ok=failure is None)


def _placed(spans: Sequence[edge_pb2.Span], began: float, ended: float) -> Iterable[RemoteSpan]:
    """A device's spans on this clock. They tell durations since the request arrived there, and the way
    there is taken to be as long as the way back."""
    if not spans:
        return
    took = max((span.began_us + span.took_us) / 1e6 for span in spans)
    arrived = began + max(0.0, (ended - began - took) / 2)
    for span in spans:
        at = min(ended, arrived + span.began_us / 1e6)
        until = min(ended, at + span.took_us / 1e6)
        yield RemoteSpan(span.name, at, until, dict(span.attributes))
