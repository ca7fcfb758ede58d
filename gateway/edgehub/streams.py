"""The devices' streams that are open: each a session, and the tasks that wait for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from edgewire.v1 import edge_pb2
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.session import (
    Answered,
    Beat,
    Closed,
    Event,
    Failed,
    Full,
    Lost,
    Opened,
    Session,
    Terms,
)
from gateway.registry.devices import Enrolled
from oip.reasons import Reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an inference on a device ended. `reason` None: `response` is the answer. `sent` is False when
    provably nothing of the request left the hub."""

    response: bytes = b""
    reason: Reason | None = None
    message: str = ""
    sent: bool = True
    spans: Sequence[edge_pb2.Span] = ()


class Stream:
    """One stream of one device. Lives on the hub's loop."""

    def __init__(
        self,
        device: Enrolled,
        terms: Terms,
        fleet: Fleet,
        clock: Callable[[], float],
        said: Callable[[Stream], None],
    ) -> None:
        """`said` is called when the device has told its facts, and when it has told what it runs."""
        self.device = device.name
        self._said = said
        self.credential_sha256 = device.credential_sha256
        self.session = Session(terms, clock())
        self.wake = asyncio.Event()
        """Set when there is something to write."""
        self.over = asyncio.Event()
        self.closed = Closed("UNAVAILABLE", "The stream ended.")
        """How the stream is to end, once it is over."""
        self._fleet = fleet
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._current = True
        self._beaten = False

    def receive(self, message: edge_pb2.DeviceMessage) -> None:
        self._happened(self.session.receive(message, self._clock()))

    def tick(self) -> None:
        self._happened(self.session.tick(self._clock()))

    def end(self, status: str, text: str) -> None:
        self._happened(self.session.end(status, text))

    def desire(self, desired: edge_pb2.Desired) -> None:
        self.session.desire(desired)
        self.wake.set()

    def superseded(self) -> None:
        """A newer stream of the device is there: what becomes of this one is no news of the device."""
        self._current = False
        self.end("ABORTED", "A newer stream of this device took the place of this one.")

    async def ask(self, body: bytes, timeout_ms: int, allowed: str, traceparent: str) -> Outcome:
        """One inference, at most `timeout_ms` long; a cancelled task cancels it at the device."""
        try:
            number = self.session.ask(body, timeout_ms, allowed, traceparent)
        except Full as full:
            return Outcome(reason=Reason.OVERLOADED, message=f"Device {self.device} {full}.", sent=False)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.wake.set()
        self._busy()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            sent = self._cancel(number)
            text = f"Device {self.device} did not answer in time."
            return Outcome(reason=Reason.DEADLINE, message=text, sent=sent)
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        finally:
            self._waiting.pop(number, None)
            self._busy()

    def _cancel(self, number: int) -> bool:
        sent = self.session.cancel(number)
        self.wake.set()
        return sent

    def _busy(self) -> None:
        if self._current and self.session.open:
            self._fleet.busy(self.device, self.session.inflight)

    def _happened(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Opened():
                    self._fleet.joined(self.device, dict(event.hello.facts))
                    self._said(self)
                    self.wake.set()
                case Beat():
                    self._fleet.beat(self.device, event.heartbeat)
                    if not self._beaten:
                        self._beaten = True
                        self._said(self)
                case Answered():
                    self._settle(event.number, Outcome(event.body, spans=event.spans))
                case Failed():
                    text = event.message or f"Device {self.device} failed without a reason."
                    self._settle(event.number, Outcome(b"", event.reason, text, event.sent, event.spans))
                case Lost():
                    text = f"Device {self.device} went away before it answered."
                    self._settle(
                        event.number, Outcome(reason=Reason.UNAVAILABLE, message=text, sent=event.sent)
                    )
                case Closed():
                    self.closed = event
                    self.over.set()
                    if self._current:
                        self._fleet.left(self.device)

    def _settle(self, number: int, outcome: Outcome) -> None:
        answer = self._waiting.get(number)
        if answer is not None and not answer.done():
            answer.set_result(outcome)


class Streams:
    """The one stream that counts for each device: the newest."""

    def __init__(self) -> None:
        self._by_device: dict[str, Stream] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._by_device.values()))

    def get(self, device: str) -> Stream | None:
        return self._by_device.get(device)

    def join(self, stream: Stream) -> None:
        """The stream takes the place of an older one, which ends."""
        older = self._by_device.get(stream.device)
        self._by_device[stream.device] = stream
        if older is not None:
            older.superseded()

    def leave(self, stream: Stream) -> None:
        """A stream is over; a newer one of the same device stays."""
        if self._by_device.get(stream.device) is stream:
            del self._by_device[stream.device]
