"""One device's stream as a state machine. PURE: messages and instants in, events and messages out.

            receive Hello               silence, a broken rule, `end`
  waiting ────────────────> open ─────────────────────────────────> ended
     └──────────────── no Hello in time ──────────────────────────────^

Inferences are numbered by the hub, from 1 upwards, and a number is never used twice in a stream. So a
message about a number below the next one, for which nobody waits, is late: its request was cancelled
or ran out of time. It is dropped without a word. A number that was never given out is a broken rule, as
is whatever else the schema forbids; it ends the stream with INVALID_ARGUMENT and says why.

Instants are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from edgewire.v1 import edge_pb2
from gateway.edgehub.answers import Answers, Broken
from gateway.edgehub.outbox import PIECE_BYTES, Outbox
from oip.reasons import Reason

MISSED = 3
"""So many heartbeats in a row may be missing before the device counts as gone."""
MAX_TEXT = 1000
"""Longest message of a device that is passed on, in characters."""
MAX_NAME = 256
"""Longest name, version, digest or fact of a device, in characters."""
MAX_FACTS = 64
MAX_MODELS = 256
MAX_DESCRIBED = 512 * 1024
"""Most that the metadata and configurations of one heartbeat have, in bytes: all who watch get them."""
MAX_SPANS = 32
MAX_ATTRIBUTES = 16


@dataclass(frozen=True, slots=True)
class Terms:
    """What the hub tells a device when it joins, and what it holds for it at most.

    `max_message_bytes` bounds one request and one answer, `max_inflight` the inferences at the device,
    `max_held_bytes` the bodies that wait to be sent to it, and as much again the answers that arrive.
    """

    gateway: str
    heartbeat_s: float = 2.0
    max_message_bytes: int = 64 * 2**20
    max_inflight: int = 256
    max_held_bytes: int = 4 * 64 * 2**20
    hello_s: float = 10.0
    place: edge_pb2.Place | None = None
    """Where the gateway is."""

    @property
    def silence_s(self) -> float:
        """Nothing heard for so long: MISSED heartbeats are missing, the last by half its interval."""
        return (MISSED + 0.5) * self.heartbeat_s


@dataclass(frozen=True, slots=True)
class Opened:
    """The device said Hello and was welcomed."""

    hello: edge_pb2.Hello


@dataclass(frozen=True, slots=True)
class Beat:
    heartbeat: edge_pb2.Heartbeat


@dataclass(frozen=True, slots=True)
class Answered:
    """A serialized ModelInferResponse, whole."""

    number: int
    body: bytes
    spans: tuple[edge_pb2.Span, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The device or the hub says that it did not work; `sent` as in `Lost`."""

    number: int
    reason: Reason
    message: str
    sent: bool
    spans: tuple[edge_pb2.Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended under an inference. `sent` is False when none of it was handed out to be written."""

    number: int
    sent: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream is to end with this gRPC status; always the last event."""

    status: str
    text: str


Event = Opened | Beat | Answered | Failed | Lost | Closed


class Full(Exception):
    """The device has as much to do as it may have; the text says of what."""


class Session:
    """See the module. Every method is synchronous; none raises but `ask`."""

    def __init__(self, terms: Terms, now: float) -> None:
        self._terms = terms
        self._began = now
        self._heard = now
        self._open = False
        self._ended = False
        self._next = 1
        self._waiting: set[int] = set()
        self._outbox = Outbox()
        self._answers = Answers(terms.max_message_bytes, terms.max_held_bytes)
        self._desired: edge_pb2.Desired | None = None

    @property
    def open(self) -> bool:
        """Whether inferences may be asked of it."""
        return self._open and not self._ended

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def inflight(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Bytes of requests that wait to be sent and of answers that are arriving."""
        return self._outbox.held + self._answers.announced

    def take(self) -> edge_pb2.HubMessage | None:
        """The next message to write to the device; None when there is none."""
        return None if self._ended else self._outbox.take()

    @property
    def desired(self) -> edge_pb2.Desired | None:
        """What the device was told to do on this stream; None: nothing yet, and it goes on as it does."""
        return self._desired

    def desire(self, desired: edge_pb2.Desired) -> None:
        """What an open session's device is to do; sent where it was told otherwise before."""
        if self.open and desired != self._desired:
            self._desired = desired
            self._outbox.tell(edge_pb2.HubMessage(desired=desired))

    def ask(self, body: bytes, timeout_ms: int, allowed: str, traceparent: str) -> int:
        """Queue one inference and return its number. Raises Full. The session must be open."""
        assert self.open
        terms = self._terms
        if len(self._waiting) >= terms.max_inflight:
            raise Full(f"has {terms.max_inflight} requests under way")
        if self._outbox.held + len(body) > terms.max_held_bytes:
            raise Full("has too much data waiting to be sent to it")
        number = self._next
        self._next += 1
        self._waiting.add(number)
        self._outbox.infer(
            edge_pb2.Infer(
                id=number, size=len(body), timeout_ms=timeout_ms, allowed=allowed, traceparent=traceparent
            ),
            body,
        )
        return number

    def cancel(self, number: int) -> bool:
        """Nobody waits for this inference any more. Returns whether any of it was handed out."""
        if number not in self._waiting:
            return True
        sent = self._forget(number)
        if sent and not self._ended:
            self._outbox.tell(edge_pb2.HubMessage(cancel=edge_pb2.Cancel(id=number)))
        return sent

    def receive(self, message: edge_pb2.DeviceMessage, now: float) -> list[Event]:
        """One message of the device, in the order in which they came."""
        if self._ended:
            return []
        try:
            events = self._received(message)
        except Broken as broken:
            return self.end("INVALID_ARGUMENT", f"The device sent {broken}.")
        self._heard = now
        return events

    def tick(self, now: float) -> list[Event]:
        """Time passes: a device that says nothing is gone."""
        if self._ended:
            return []
        if not self._open:
            if now - self._began < self._terms.hello_s:
                return []
            return self.end("INVALID_ARGUMENT", f"No Hello came within {self._terms.hello_s:g} s.")
        if now - self._heard < self._terms.silence_s:
            return []
        return self.end("UNAVAILABLE", f"Nothing was heard of the device for {self._terms.silence_s:g} s.")

    def end(self, status: str, text: str) -> list[Event]:
        """End the stream: every inference under way is lost at once."""
        if self._ended:
            return []
        self._ended = True
        lost: list[Event] = [Lost(number, self._forget(number)) for number in sorted(self._waiting)]
        self._outbox = Outbox()
        return [*lost, Closed(status, text)]

    def _received(self, message: edge_pb2.DeviceMessage) -> list[Event]:
        kind = message.WhichOneof("kind")
        if kind is None:
            raise Broken("an empty or unknown message")
        if not self._open:
            if kind != "hello":
                raise Broken(f"{kind} before Hello")
            return self._greeted(message.hello)
        match kind:
            case "heartbeat":
                return self._beat(message.heartbeat)
            case "answer":
                return self._answered(message.answer)
            case "data":
                return self._data(message.data)
            case _:
                raise Broken("a second Hello")

    def _greeted(self, hello: edge_pb2.Hello) -> list[Event]:
        if len(hello.facts) > MAX_FACTS:
            raise Broken(f"more than {MAX_FACTS} facts")
        if any(len(text) > MAX_NAME for fact in hello.facts.items() for text in fact):
            raise Broken(f"a fact of more than {MAX_NAME} characters")
        self._open = True
        welcome = edge_pb2.Welcome(
            gateway=self._terms.gateway,
            heartbeat_ms=round(self._terms.heartbeat_s * 1000),
            max_message_bytes=self._terms.max_message_bytes,
            place=self._terms.place,
        )
        self._outbox.tell(edge_pb2.HubMessage(welcome=welcome))
        return [Opened(hello)]

    def _beat(self, heartbeat: edge_pb2.Heartbeat) -> list[Event]:
        if len(heartbeat.models) > MAX_MODELS:
            raise Broken(f"more than {MAX_MODELS} models")
        told: set[str] = set()
        described = 0
        for state in heartbeat.models:
            if state.model in told:
                # Groups go by what most devices tell, and a device has one voice.
                raise Broken("two states of one model")
            told.add(state.model)
            names = (
                state.model, state.version, state.digest, state.active_digest, state.active_version,
                state.previous_digest, state.previous_version, state.delegate,
            )  # fmt: skip
            if any(len(name) > MAX_NAME for name in names):
                raise Broken(f"a model state with a name of more than {MAX_NAME} characters")
            described += len(state.metadata) + len(state.config)
            state.reason, state.degraded = _cut(state.reason), _cut(state.degraded)
            state.state = _known(state.state)
        if described > MAX_DESCRIBED:
            raise Broken(f"{described} bytes about its models, where {MAX_DESCRIBED} are taken")
        _refuse_trials(heartbeat.trials)
        _drop_untrue(heartbeat.telemetry)
        return [Beat(heartbeat)]

    def _answered(self, answer: edge_pb2.Answer) -> list[Event]:
        if not self._awaited(answer.id):
            return []
        if answer.id in self._answers:
            raise Broken("a second Answer for one inference")
        if self._outbox.holds_all_of(answer.id):
            raise Broken(f"an answer to inference {answer.id}, which was not sent yet")
        spans = _spans(answer)
        if answer.reason:
            if answer.size:
                raise Broken("an error with data")
            reason, text = _told(answer)
            return [Failed(answer.id, reason, text, self._forget(answer.id), spans)]
        if not answer.size:
            self._forget(answer.id)
            return [Answered(answer.id, b"", spans)]
        if answer.size <= self._terms.max_message_bytes and not self._answers.fits(answer.size):
            # What follows of it is late data of a request that nobody waits for.
            text = "The device has more answers on their way than the gateway holds at once."
            return [Failed(answer.id, Reason.OVERLOADED, text, self._forget(answer.id), spans)]
        # Kept until the answer is whole, so only what is wanted of it.
        self._answers.begin(edge_pb2.Answer(id=answer.id, size=answer.size, spans=spans))
        self._outbox.drop(answer.id)
        return []

    def _data(self, data: edge_pb2.Data) -> list[Event]:
        if not 0 < len(data.piece) <= PIECE_BYTES:
            raise Broken(f"a piece of {len(data.piece)} bytes, where 1 to {PIECE_BYTES} are agreed")
        if not self._awaited(data.id):
            return []
        if data.id not in self._answers:
            raise Broken("data before its Answer")
        whole = self._answers.add(data.id, data.piece)
        if whole is None:
            return []
        self._forget(data.id)
        answer, body = whole
        return [Answered(data.id, body, tuple(answer.spans))]

    def _awaited(self, number: int) -> bool:
        """Whether somebody waits for it. Raises Broken for a number that was never given out."""
        if not 0 < number < self._next:
            raise Broken(f"something for inference {number}, which was never asked for")
        return number in self._waiting

    def _forget(self, number: int) -> bool:
        """An inference is over; returns whether any of it was handed out."""
        self._waiting.discard(number)
        self._answers.drop(number)
        return self._outbox.drop(number)


def _told(answer: edge_pb2.Answer) -> tuple[Reason, str]:
    """An error of a device in terms that this gateway knows."""
    text = _cut(answer.message)
    try:
        return Reason(answer.reason), text
    except ValueError:
        return Reason.ENDPOINT_FAILED, text


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _known(state: edge_pb2.ModelState.State) -> edge_pb2.ModelState.State:
    """A state that only a later version has is none that is told apart here."""
    return state if state in edge_pb2.ModelState.State.values() else edge_pb2.ModelState.STATE_UNSPECIFIED


def _refuse_trials(trials: Sequence[edge_pb2.Trial]) -> None:
    """Raises Broken for more of them than there can be, and for what is no name and no time."""
    if len(trials) > MAX_MODELS:
        raise Broken(f"more than {MAX_MODELS} trials")
    for trial in trials:
        if any(len(name) > MAX_NAME for name in (trial.model, trial.version, trial.digest)):
            raise Broken(f"a trial with a name of more than {MAX_NAME} characters")
        times = (trial.latency_p50_ms, trial.latency_p95_ms, trial.active_p50_ms, trial.active_p95_ms)
        if not all(isfinite(took) and took >= 0 for took in times):
            raise Broken("a trial with a time that is none")
        trial.reason, trial.state = _cut(trial.reason), _known(trial.state)


def _spans(answer: edge_pb2.Answer) -> tuple[edge_pb2.Span, ...]:
    """Those of an answer that are like a span, of bounded size."""
    return tuple(
        span
        for span in answer.spans[:MAX_SPANS]
        if len(span.name) <= MAX_NAME
        and len(span.attributes) <= MAX_ATTRIBUTES
        and all(len(text) <= MAX_NAME for pair in span.attributes.items() for text in pair)
    )


def _drop_untrue(telemetry: edge_pb2.Telemetry) -> None:
    """Clear the readings that are no finite number: nobody can compare or show them."""
    for field, value in telemetry.ListFields():
        if isinstance(value, float) and not isfinite(value):
            telemetry.ClearField(field.name)
