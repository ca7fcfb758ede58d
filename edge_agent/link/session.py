"""One stream to a hub, as a state machine without I/O: the hub's messages in, effects and an outbox out.

Invariants:
- Every inference is answered exactly once, unless the hub cancels it or the stream ends.
- Nothing runs here that the allowed set of its request does not let run at this device's own place; a
  request without such a set, or with one that cannot be read, is refused.
- What is held of requests and answers counts against one budget, and all of it is given back.
- A message that breaks the protocol raises LinkBroken and changes nothing; whatever an inference itself
  has wrong is its answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_agent.link.outbox import Outbox
from edgewire import allowed
from edgewire.places import Place
from edgewire.v1 import edge_pb2
from edgewire.wire_places import from_wire
from oip.errors import OipError
from oip.held import BodyBudget, BodyShare
from oip.names import shown
from oip.reasons import Reason

MAX_INFLIGHT = 256
"""So many inferences of one hub at once; a device runs few at a time, and the rest would only wait."""
MAX_UNSENT = 4 * MAX_INFLIGHT
"""So many answers may wait for the hub to take them; a hub that asks on without taking any is left."""
MIN_HEARTBEAT_MS = 100
MAX_HEARTBEAT_MS = 3_600_000


class LinkBroken(Exception):
    """The hub said something that the protocol does not have."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The stream is up. `heartbeat_s` is the longest time between heartbeats, in seconds; `place` is where
    the gateway is, None where it does not say."""

    gateway: str
    heartbeat_s: float
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Desire:
    """The hub's desired state of the device, complete."""

    message: edge_pb2.Desired


@dataclass(frozen=True, slots=True)
class Start:
    """Run this serialized ModelInferRequest, which arrived at the monotonic instant `arrived`, and be
    done by `deadline`. `allowed` is its set of places, as text."""

    id: int
    request: bytes = field(repr=False)
    arrived: float
    deadline: float
    allowed: str
    traceparent: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel what was started under this id: nobody waits for it."""

    id: int


Effect = Welcomed | Desire | Start | Stop


@dataclass(slots=True)
class _Inference:
    size: int
    arrived: float
    deadline: float
    allowed: str
    traceparent: str
    share: BodyShare
    # One buffer: kept one by one, a million pieces of a byte would take fifty times their size.
    body: bytearray = field(default_factory=bytearray)
    started: bool = False


class Session:
    """The conversation on one stream, from `hello` on. `place` is the device's own.

    A request has at most `max_body_bytes`. Instants are of the monotonic clock.
    """

    def __init__(
        self, place: Place, hello: edge_pb2.Hello, *, max_body_bytes: int, budget: BodyBudget
    ) -> None:
        self.outbox = Outbox()
        self.welcomed = False
        self._place = place
        self._max_body_bytes = max_body_bytes
        self._max_message_bytes = 0
        self._budget = budget
        self._open: dict[int, _Inference] = {}
        self._sending: dict[int, BodyShare] = {}
        self._draining = False
        self.outbox.put(edge_pb2.DeviceMessage(hello=hello))

    @property
    def busy(self) -> bool:
        """Whether something runs or waits to be sent."""
        return bool(self._open or self.outbox)

    def drain(self) -> None:
        """Refuse new inferences; those that came go on."""
        self._draining = True

    def received(self, message: edge_pb2.HubMessage, now: float) -> list[Effect]:
        """What follows from the hub's next message. Raises LinkBroken."""
        kind = message.WhichOneof("kind")
        if (kind == "welcome") is self.welcomed:
            raise LinkBroken("the hub said welcome twice" if self.welcomed else "the hub did not say welcome")
        match kind:
            case "welcome":
                return [self._welcome(message.welcome)]
            case "desired":
                return [Desire(message.desired)]
            case "infer":
                return self._infer(message.infer, now)
            case "data":
                return self._data(message.data, now)
            case "cancel":
                return self._cancel(message.cancel.id)
            case _:
                return []  # A later version's message that this one may leave out.

    def heartbeat(
        self,
        telemetry: edge_pb2.Telemetry,
        models: Iterable[edge_pb2.ModelState],
        trials: Iterable[edge_pb2.Trial] = (),
        spooled: int = 0,
    ) -> None:
        """Send how the device, its models and its trials are, and how many records wait in its spool."""
        self.outbox.heartbeat(
            edge_pb2.Heartbeat(telemetry=telemetry, models=models, trials=trials, spooled=spooled)
        )

    def answered(self, id: int, response: bytes, spans: Iterable[edge_pb2.Span] = ()) -> None:
        """Send an inference's serialized ModelInferResponse; one that is not open is dropped."""
        inference = self._open.pop(id, None)
        if inference is None:
            return
        if len(response) > self._max_message_bytes:
            self._put_error(
                id,
                OipError(
                    Reason.TOO_LARGE,
                    f"the answer takes {len(response)} bytes, more than the gateway's limit of"
                    f" {self._max_message_bytes}",
                ),
                spans,
            )
            inference.share.settle(0)
            return
        inference.share.settle(len(response))
        self._sending[id] = inference.share
        answer = edge_pb2.Answer(id=id, size=len(response), spans=spans)
        self.outbox.answer(answer, response, lambda: self._sent(id))

    def failed(self, id: int, error: OipError, spans: Iterable[edge_pb2.Span] = ()) -> None:
        """Send how an inference failed; one that is not open is dropped."""
        inference = self._open.pop(id, None)
        if inference is not None:
            inference.share.settle(0)
            self._put_error(id, error, spans)

    def expire(self, now: float) -> None:
        """Answer the requests of which some is still missing at their deadline."""
        late = [id for id, i in self._open.items() if not i.started and i.deadline <= now]
        for id in late:
            self.failed(
                id, OipError(Reason.DEADLINE, "the deadline passed before the request reached the device")
            )

    def close(self) -> None:
        """The stream has ended: everything that is held is given back."""
        for inference in self._open.values():
            inference.share.settle(0)
        for share in self._sending.values():
            share.settle(0)
        self._open.clear()
        self._sending.clear()

    def _welcome(self, welcome: edge_pb2.Welcome) -> Welcomed:
        if not MIN_HEARTBEAT_MS <= welcome.heartbeat_ms <= MAX_HEARTBEAT_MS:
            raise LinkBroken(f"the hub asks for a heartbeat every {welcome.heartbeat_ms} ms")
        if not welcome.max_message_bytes:
            raise LinkBroken("the hub takes no answers")
        self.welcomed = True
        self._max_message_bytes = welcome.max_message_bytes
        place = from_wire(welcome.place) if welcome.HasField("place") else None
        return Welcomed(welcome.gateway, welcome.heartbeat_ms / 1000, place)

    def _infer(self, infer: edge_pb2.Infer, now: float) -> list[Effect]:
        if infer.id in self._open or infer.id in self._sending:
            raise LinkBroken(f"the hub used the id {infer.id} twice")
        if self.outbox.waiting >= MAX_UNSENT:
            raise LinkBroken(f"the hub asks on and leaves {MAX_UNSENT} answers untaken")
        share = self._budget.share()
        try:
            self._admit(infer)
            share.take(infer.size)
        except OipError as error:
            self._put_error(infer.id, error, ())
            return []
        deadline = now + infer.timeout_ms / 1000
        self._open[infer.id] = _Inference(infer.size, now, deadline, infer.allowed, infer.traceparent, share)
        return [] if infer.size else self._start(infer.id)

    def _admit(self, infer: edge_pb2.Infer) -> None:
        if not self._allowed(infer.allowed):
            raise OipError(
                Reason.PRIVACY,
                f"The places that the request may go to do not hold device {shown(self._place.device or '')}",
            )
        if not infer.timeout_ms:
            raise OipError(Reason.DEADLINE, "the deadline passed before the request reached the device")
        if self._draining:
            raise OipError(Reason.DRAINING, "this device is shutting down: ask another or try again later")
        if infer.size > self._max_body_bytes:
            raise OipError(
                Reason.TOO_LARGE,
                f"the request takes {infer.size} bytes, more than the device's limit of {self._max_body_bytes}",
            )
        if len(self._open) >= MAX_INFLIGHT:
            raise OipError(
                Reason.OVERLOADED, f"{MAX_INFLIGHT} requests are in flight, as many as this device takes"
            )

    def _allowed(self, text: str) -> bool:
        try:
            return allowed.decode(text).allows(self._place)
        except ValueError:
            return False

    def _data(self, data: edge_pb2.Data, now: float) -> list[Effect]:
        inference = self._open.get(data.id)
        if inference is None:
            return []  # Answered already, or cancelled, with some of it on the way.
        if inference.started or len(inference.body) + len(data.piece) > inference.size:
            raise LinkBroken("the hub sent more of a request than it announced")
        if not data.piece:
            raise LinkBroken("the hub sent an empty piece of a request")
        inference.body += data.piece
        if len(inference.body) < inference.size:
            return []
        if inference.deadline <= now:
            self.expire(now)
            return []
        return self._start(data.id)

    def _start(self, id: int) -> list[Effect]:
        inference = self._open[id]
        inference.started = True
        request = bytes(inference.body)
        inference.body.clear()
        return [
            Start(
                id,
                request,
                inference.arrived,
                inference.deadline,
                inference.allowed,
                inference.traceparent,
            )
        ]

    def _cancel(self, id: int) -> list[Effect]:
        self.outbox.drop(id)
        sending = self._sending.pop(id, None)
        if sending is not None:
            sending.settle(0)
        inference = self._open.pop(id, None)
        if inference is None:
            return []
        inference.share.settle(0)
        return [Stop(id)] if inference.started else []

    def _put_error(self, id: int, error: OipError, spans: Iterable[edge_pb2.Span]) -> None:
        self.outbox.answer(
            edge_pb2.Answer(id=id, reason=error.reason.value, message=error.message, spans=spans)
        )

    def _sent(self, id: int) -> None:
        share = self._sending.pop(id, None)
        if share is not None:
            share.settle(0)
