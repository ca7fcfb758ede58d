"""A device's stream under whatever a device may send, and whatever order things happen in."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.v1 import edge_pb2
from gateway.edgehub import groups
from gateway.edgehub.admission import MAX_HINT_S, Admission
from gateway.edgehub.outbox import PIECE_BYTES
from gateway.edgehub.session import Answered, Closed, Event, Failed, Full, Lost, Session, Terms

SETTINGS = settings(max_examples=200, derandomize=True, database=None, deadline=None)
TERMS = Terms("gw", heartbeat_s=1.0, max_message_bytes=5000, max_inflight=4, max_held_bytes=8000)


class Course:
    """A hub and a device that mostly keep to the rules, `rng` choosing what happens next."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.session, self.now = Session(TERMS, 0.0), 0.0
        self.asked: set[int] = set()
        self.cancelled: set[int] = set()
        self.taken: set[int] = set()
        self.told_cancelled: set[int] = set()
        self.open_answers: dict[int, int] = {}
        self.events: list[Event] = []

    def step(self) -> None:
        self.rng.choices(
            [self.ask, self.take, self.answer, self.data, self.cancel, self.beat, self.lie],
            [20, 40, 15, 40, 5, 3, 1],
        )[0]()
        session = self.session
        assert 0 <= session.held <= 2 * TERMS.max_held_bytes
        assert session.inflight <= TERMS.max_inflight
        assert session.ended == any(isinstance(e, Closed) for e in self.events)

    def receive(self, **kind: object) -> None:
        self.events += self.session.receive(edge_pb2.DeviceMessage(**kind), self.now)  # type: ignore[arg-type]

    def ask(self) -> None:
        if not self.session.open:
            return
        body, before = self.rng.randbytes(self.rng.choice([0, 10, 4000])), self.session.inflight
        try:
            self.asked.add(self.session.ask(body, 1, "none", ""))
        except Full:
            assert before == TERMS.max_inflight or self.session.held + len(body) > TERMS.max_held_bytes

    def take(self) -> None:
        message = self.session.take()
        kind = message.WhichOneof("kind") if message is not None else ""
        if message is not None and kind == "infer":
            self.taken.add(message.infer.id)
        elif message is not None and kind == "cancel":
            self.told_cancelled.add(message.cancel.id)

    def answer(self) -> None:
        """Of something that was sent and perhaps cancelled since."""
        number = self._some(self.taken - self.open_answers.keys())
        if number:
            size = self.rng.choice([0, 1, 3000, 5000])
            reason = self.rng.choice(["", "", "", "malformed", "no such reason"]) if not size else ""
            self.receive(answer=edge_pb2.Answer(id=number, size=size, reason=reason))
            self.open_answers[number] = size

    def data(self) -> None:
        number = self._some({n for n, left in self.open_answers.items() if left})
        if number:
            size = min(self.open_answers[number], self.rng.choice([1, 1000, 3000]))
            self.open_answers[number] -= size
            self.receive(data=edge_pb2.Data(id=number, piece=bytes(size)))

    def cancel(self) -> None:
        number = self._some(self.asked - self.cancelled - set(ended(self.events)))
        if number and not self.session.ended:
            assert self.session.cancel(number) == (number in self.taken)
            self.cancelled.add(number)

    def beat(self) -> None:
        self.now += self.rng.choice([0.1, 1.0])
        self.events += self.session.tick(self.now)
        self.receive(heartbeat=edge_pb2.Heartbeat())

    def lie(self) -> None:
        number = self.rng.randrange(10)
        lies: list[dict[str, object]] = [
            {},
            {"hello": edge_pb2.Hello()},
            {"answer": edge_pb2.Answer(id=number, size=self.rng.choice([0, 1, 6000]))},
            {"data": edge_pb2.Data(id=number, piece=self.rng.randbytes(self.rng.choice([0, 1, 70_000])))},
        ]
        self.receive(**self.rng.choice(lies))

    def _some(self, numbers: set[int]) -> int:
        return self.rng.choice(sorted(numbers)) if numbers else 0


@settings(SETTINGS, max_examples=150)
@given(st.integers(0, 2**32))
def test_each_inference_ends_once_and_nothing_is_held_beyond_the_bounds(seed: int):
    course = Course(Random(seed))
    course.receive(hello=edge_pb2.Hello())
    for _ in range(150):
        course.step()
    assert course.told_cancelled <= course.cancelled & course.taken
    course.events += course.session.end("UNAVAILABLE", "over")
    ends = ended(course.events)
    assert set(ends) == course.asked - course.cancelled
    assert set(ends.values()) <= {1}
    assert sum(isinstance(e, Closed) for e in course.events) == 1
    assert isinstance(course.events[-1], Closed)
    for event in course.events:
        if isinstance(event, Lost):
            assert event.sent == (event.number in course.taken)
        if isinstance(event, Answered):
            assert len(event.body) <= TERMS.max_message_bytes
            assert event.number in course.taken
    assert (course.session.held, course.session.inflight) == (0, 0)


def ended(events: list[Event]) -> Counter[int]:
    """How often each inference ended."""
    return Counter(e.number for e in events if isinstance(e, Answered | Failed | Lost))


@settings(SETTINGS, max_examples=60)
@given(st.lists(st.integers(0, 4 * PIECE_BYTES), min_size=1, max_size=4), st.integers(0, 2**32))
def test_an_honest_device_gets_and_gives_every_byte_whatever_the_order(sizes: list[int], seed: int):
    rng = Random(seed)
    terms = Terms("gw", max_message_bytes=2**20, max_held_bytes=2**24)
    session = Session(terms, 0.0)
    session.receive(edge_pb2.DeviceMessage(hello=edge_pb2.Hello()), 0.0)
    bodies = [rng.randbytes(size) for size in sizes]
    numbers = [session.ask(body, 1, "none", "") for body in bodies]
    arrived = dict.fromkeys(numbers, b"")
    wanted: dict[int, int] = {}
    since: Counter[int] = Counter()
    while (message := session.take()) is not None:
        if message.WhichOneof("kind") == "infer":
            wanted[message.infer.id] = message.infer.size
        elif message.WhichOneof("kind") == "data":
            number = message.data.id
            arrived[number] += message.data.piece
            since[number] = 0
            for other in numbers:
                if other != number and len(arrived[other]) < len(bodies[other - 1]):
                    since[other] += 1
                    assert since[other] <= len(numbers), "a body did not get its turn"
    assert wanted == {n: len(b) for n, b in zip(numbers, bodies, strict=True)}
    assert [arrived[number] for number in numbers] == bodies

    sending = {n: [b[i : i + PIECE_BYTES] for i in range(0, len(b), PIECE_BYTES)] for n, b in arrived.items()}
    answers: dict[int, bytes] = {}
    for number in numbers:
        told = edge_pb2.DeviceMessage(answer=edge_pb2.Answer(id=number, size=len(arrived[number])))
        answers |= {e.number: e.body for e in session.receive(told, 0.0) if isinstance(e, Answered)}
    while any(sending.values()):
        number = rng.choice([n for n, left in sending.items() if left])
        piece = edge_pb2.DeviceMessage(data=edge_pb2.Data(id=number, piece=sending[number].pop(0)))
        answers |= {e.number: e.body for e in session.receive(piece, 0.0) if isinstance(e, Answered)}
    assert answers == dict(zip(numbers, bodies, strict=True))
    assert (session.held, session.inflight) == (0, 0)


@SETTINGS
@given(st.lists(st.floats(0, 0.5), max_size=150), st.floats(1, 100), st.integers(1, 20))
def test_no_more_are_let_in_than_the_rate_and_the_burst_allow(gaps: list[float], rate: float, burst: int):
    admission, now, let_in = Admission(rate, burst), 100.0, 0
    hints: list[float] = []
    for gap in gaps:
        now += gap
        wait_s = admission.ask(now)
        let_in += wait_s == 0
        assert 0 <= wait_s <= MAX_HINT_S
        if 0 < wait_s < MAX_HINT_S:
            hints.append(now + wait_s)
    assert let_in <= burst + (now - 100.0) * rate + 1
    assert all(later - earlier >= 0.9 / rate for earlier, later in pairwise(hints))


names = st.sampled_from(["a", "b", "c"])
labels = st.dictionaries(names, names, max_size=3)
selections = st.fixed_dictionaries(
    {},
    optional={
        "site": st.lists(names, min_size=1, max_size=2) | names,
        "labels": st.dictionaries(names, st.lists(names, min_size=1, max_size=2) | names, max_size=2),
    },
)


@SETTINGS
@given(selections, selections, names, labels)
def test_groups_that_share_a_device_are_known_to_be_able_to(one, other, site: str, has: dict[str, str]):
    first = groups.EdgeConfig.model_validate({"name": "x", "kind": "edge", "select": one})
    second = groups.EdgeConfig.model_validate({"name": "y", "kind": "edge", "select": other})
    for config, chosen in ((first, one), (second, other)):
        wanted = chosen.get("site", site)
        expected = site in wanted and all(
            has.get(key) is not None and has[key] in values
            for key, values in chosen.get("labels", {}).items()
        )
        assert groups.selects(config, site, has) == expected
    if groups.selects(first, site, has) and groups.selects(second, site, has):
        assert groups.may_share_devices(first, second)
