"""One device's stream: what it answers to, and what ends it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from edgewire.v1 import edge_pb2
from gateway.edgehub.outbox import PIECE_BYTES, Outbox
from gateway.edgehub.session import Answered, Beat, Closed, Failed, Full, Lost, Opened, Session, Terms
from oip.reasons import Reason

TERMS = Terms(
    "gw",
    heartbeat_s=2.0,
    max_message_bytes=300_000,
    max_inflight=3,
    max_held_bytes=500_000,
    place=edge_pb2.Place(tier="site", site="plant-7"),
)


def hello() -> edge_pb2.DeviceMessage:
    return edge_pb2.DeviceMessage(hello=edge_pb2.Hello(agent_version="1", facts={"cores": "4"}))


def answer(number: int, size: int = 0, reason: str = "", message: str = "") -> edge_pb2.DeviceMessage:
    told = edge_pb2.Answer(id=number, size=size, reason=reason, message=message)
    told.spans.add(name="tidegate.agent.infer", took_us=7)
    return edge_pb2.DeviceMessage(answer=told)


def data(number: int, piece: bytes) -> edge_pb2.DeviceMessage:
    return edge_pb2.DeviceMessage(data=edge_pb2.Data(id=number, piece=piece))


def heartbeat(models: int = 0) -> edge_pb2.DeviceMessage:
    states = [edge_pb2.ModelState(model=f"m{n}") for n in range(models)]
    return edge_pb2.DeviceMessage(heartbeat=edge_pb2.Heartbeat(models=states))


def opened(now: float = 0.0) -> Session:
    session = Session(TERMS, now)
    session.receive(hello(), now)
    drain(session)
    return session


def drain(session: Session) -> list[edge_pb2.HubMessage]:
    found = []
    while (message := session.take()) is not None:
        found.append(message)
    return found


def ask(session: Session, body: bytes = b"body") -> int:
    return session.ask(body, 1000, "tier=device", "00-x")


def kinds(messages: list[edge_pb2.HubMessage]) -> list[str | None]:
    return [message.WhichOneof("kind") for message in messages]


def test_hello_is_answered_with_the_terms_and_what_to_run():
    session = Session(TERMS, 0.0)
    assert session.take() is None
    (event,) = session.receive(hello(), 0.5)
    assert isinstance(event, Opened)
    assert event.hello.facts == {"cores": "4"}
    # Whoever is told of nothing to run stops everything, so that nothing is said until it is known.
    (welcome,) = drain(session)
    assert (welcome.welcome.gateway, welcome.welcome.heartbeat_ms) == ("gw", 2000)
    assert welcome.welcome.max_message_bytes == 300_000
    assert welcome.welcome.place.site == "plant-7"
    digits = edge_pb2.Desired(models=[edge_pb2.DesiredModel(model="digits")], report_ms=5)
    session.desire(digits)
    session.desire(digits)
    (desired,) = drain(session)
    assert desired.desired == digits
    session.desire(edge_pb2.Desired())
    (desired,) = drain(session)
    assert desired.WhichOneof("kind") == "desired"
    assert not desired.desired.models


def test_an_inference_goes_out_in_pieces_and_its_answer_comes_back_whole():
    session = opened()
    body = bytes(range(256)) * 600
    number = session.ask(body, 1234, "tier=device;site=a", "00-t")
    infer, *pieces = drain(session)
    assert (infer.infer.id, infer.infer.size, infer.infer.timeout_ms) == (number, len(body), 1234)
    assert (infer.infer.allowed, infer.infer.traceparent) == ("tier=device;site=a", "00-t")
    assert [len(m.data.piece) for m in pieces] == [PIECE_BYTES, PIECE_BYTES, len(body) - 2 * PIECE_BYTES]
    assert b"".join(m.data.piece for m in pieces) == body
    assert session.receive(answer(number, 5), 1.0) == []
    assert session.receive(data(number, b"ab"), 1.0) == []
    (event,) = session.receive(data(number, b"cde"), 1.0)
    assert isinstance(event, Answered)
    assert (event.number, event.body, event.spans[0].took_us) == (number, b"abcde", 7)
    assert (session.inflight, session.held) == (0, 0)


def test_a_small_request_and_a_cancel_overtake_a_large_one():
    session = opened()
    large = ask(session, bytes(3 * PIECE_BYTES))
    assert kinds([session.take(), session.take()]) == ["infer", "data"]
    small = ask(session, b"small")
    session.cancel(ask(session, b"never sent"))
    sent = drain(session)
    assert kinds(sent) == ["infer", "data", "data", "data"]
    assert [m.data.id for m in sent[1:]] == [large, small, large]


def test_a_cancel_stops_the_pieces_and_is_told_only_of_what_was_sent():
    session = opened()
    number = ask(session, bytes(3 * PIECE_BYTES))
    session.take()
    session.take()
    assert session.cancel(number) is True
    (told,) = drain(session)
    assert told.cancel.id == number
    assert session.held == 0
    unsent = ask(session)
    assert session.cancel(unsent) is False
    assert drain(session) == []


def test_late_answers_are_dropped_without_a_word():
    session = opened()
    cancelled, done = ask(session), ask(session)
    drain(session)
    session.cancel(cancelled)
    for late in (answer(cancelled, 3), data(cancelled, b"abc"), answer(cancelled, reason="deadline")):
        assert session.receive(late, 1.0) == []
    (event,) = session.receive(answer(done), 1.0)
    assert isinstance(event, Answered)
    assert session.receive(answer(done), 1.0) == []
    half = ask(session)
    drain(session)
    session.receive(answer(half, 3), 1.0)
    session.cancel(half)
    assert session.receive(data(half, b"abc"), 1.0) == []
    assert session.held == 0
    assert session.open


def test_an_error_of_the_device_is_passed_on_within_bounds():
    session = opened()
    one, other = ask(session), ask(session)
    drain(session)
    (event,) = session.receive(answer(one, reason="model_unavailable", message="x" * 5000), 1.0)
    assert isinstance(event, Failed)
    assert (event.reason, event.sent, len(event.message)) == (Reason.MODEL_UNAVAILABLE, True, 1000)
    (event,) = session.receive(answer(other, reason="of its own making"), 1.0)
    assert isinstance(event, Failed)
    assert event.reason is Reason.ENDPOINT_FAILED


def test_an_answer_before_the_last_piece_ends_the_pieces():
    session = opened()
    number = ask(session, bytes(4 * PIECE_BYTES))
    session.take()
    session.take()
    (event,) = session.receive(answer(number, reason="malformed"), 1.0)
    assert isinstance(event, Failed)
    assert drain(session) == []


BROKEN: list[tuple[str, Callable[[Session, int], list[edge_pb2.DeviceMessage]]]] = [
    ("an empty or unknown message", lambda s, n: [edge_pb2.DeviceMessage()]),
    ("a second Hello", lambda s, n: [hello()]),
    ("something for inference 9, which was never asked for", lambda s, n: [answer(9)]),
    ("something for inference 0, which was never asked for", lambda s, n: [data(0, b"x")]),
    ("data before its Answer", lambda s, n: [data(n, b"x")]),
    ("a second Answer", lambda s, n: [answer(n, 4), answer(n, 4)]),
    ("more data than its Answer announced", lambda s, n: [answer(n, 4), data(n, b"12345")]),
    ("a piece of 0 bytes", lambda s, n: [answer(n, 4), data(n, b"")]),
    ("a piece of 65537 bytes", lambda s, n: [answer(n, 100_000), data(n, bytes(65537))]),
    ("an answer of 300001 bytes, where 300000 were agreed", lambda s, n: [answer(n, 300_001)]),
    ("an error with data", lambda s, n: [answer(n, 1, "internal")]),
    ("more than 256 models", lambda s, n: [heartbeat(257)]),
    ("which was not sent yet", lambda s, n: [answer(ask(s))]),
]


@pytest.mark.parametrize(("says", "messages"), BROKEN, ids=[says for says, _ in BROKEN])
def test_a_broken_rule_ends_the_stream_and_says_which(says, messages):
    session = opened()
    number = ask(session)
    drain(session)
    events = [event for message in messages(session, number) for event in session.receive(message, 1.0)]
    assert Lost(number, sent=True) in events
    assert isinstance(events[-1], Closed)
    assert events[-1].status == "INVALID_ARGUMENT"
    assert says in events[-1].text
    assert session.ended
    assert session.receive(heartbeat(), 1.0) == []
    assert session.take() is None


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (heartbeat(), "heartbeat before Hello"),
        (answer(1), "answer before Hello"),
        (edge_pb2.DeviceMessage(hello=edge_pb2.Hello(facts={str(n): "" for n in range(65)})), "64 facts"),
    ],
)
def test_the_first_message_is_hello(message, says):
    session = Session(TERMS, 0.0)
    (event,) = session.receive(message, 0.0)
    assert isinstance(event, Closed)
    assert says in event.text
    assert not session.open


def test_a_device_is_gone_after_three_heartbeats_that_did_not_come():
    session = opened()
    number = ask(session)
    assert session.receive(heartbeat(), 10.0) == [Beat(edge_pb2.Heartbeat())]
    assert session.tick(16.9) == []
    assert session.open
    lost, closed = session.tick(17.0)
    assert lost == Lost(number, sent=False)
    assert closed == Closed("UNAVAILABLE", "Nothing was heard of the device for 7 s.")
    assert session.tick(99.0) == []


def test_whatever_a_device_says_is_a_sign_of_life():
    session = opened()
    number = ask(session)
    drain(session)
    session.receive(answer(number, 9), 6.0)
    session.receive(data(number, b"x"), 12.0)
    assert session.tick(18.9) == []
    assert session.tick(19.0) != []


def test_a_stream_that_says_no_hello_ends():
    session = Session(TERMS, 5.0)
    assert session.tick(14.9) == []
    (event,) = session.tick(15.0)
    assert event == Closed("INVALID_ARGUMENT", "No Hello came within 10 s.")


def test_an_end_tells_of_each_inference_whether_it_was_sent():
    session = opened()
    sent = ask(session, bytes(2 * PIECE_BYTES))
    session.take()
    unsent = ask(session)
    events = session.end("UNAVAILABLE", "why")
    assert events == [Lost(sent, sent=True), Lost(unsent, sent=False), Closed("UNAVAILABLE", "why")]
    assert session.end("ABORTED", "again") == []
    assert (session.inflight, session.held) == (0, 0)


def test_a_device_gets_only_so_much_at_once():
    session = opened()
    for _ in range(3):
        ask(session)
    with pytest.raises(Full, match="has 3 requests under way"):
        ask(session)
    session = opened()
    ask(session, bytes(300_000))
    with pytest.raises(Full, match="too much data waiting"):
        ask(session, bytes(200_001))
    ask(session, bytes(200_000))


def test_answers_that_do_not_fit_together_fail_one_request_and_not_the_stream():
    session = opened()
    one, other = ask(session), ask(session)
    drain(session)
    assert session.receive(answer(one, 300_000), 1.0) == []
    (event,) = session.receive(answer(other, 200_001), 1.0)
    assert isinstance(event, Failed)
    assert (event.number, event.reason, event.sent) == (other, Reason.OVERLOADED, True)
    assert session.receive(data(other, b"late"), 1.0) == []
    for at in range(0, 300_000, PIECE_BYTES):
        events = session.receive(data(one, bytes(min(PIECE_BYTES, 300_000 - at))), 1.0)
    assert isinstance(events[0], Answered)


def test_bodies_take_turns():
    outbox = Outbox()
    for number, pieces in ((1, 3), (2, 1), (3, 2)):
        size = pieces * PIECE_BYTES
        outbox.infer(edge_pb2.Infer(id=number, size=size), bytes(size))
    taken = []
    while (message := outbox.take()) is not None:
        if message.WhichOneof("kind") == "data":
            taken.append(message.data.id)
    assert taken == [1, 2, 3, 1, 3, 1]
    assert outbox.held == 0


def told(*models: edge_pb2.ModelState, **telemetry: float) -> edge_pb2.DeviceMessage:
    beat = edge_pb2.Heartbeat(telemetry=edge_pb2.Telemetry(**telemetry), models=models)  # type: ignore[arg-type]
    return edge_pb2.DeviceMessage(heartbeat=beat)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (
            told(edge_pb2.ModelState(model="m"), edge_pb2.ModelState(model="m", metadata=b"other")),
            "two states of one model",
        ),
        (
            told(edge_pb2.ModelState(model="m" * 257)),
            "a model state with a name of more than 256 characters",
        ),
        (
            told(edge_pb2.ModelState(model="a", metadata=b"x" * 300_000, config=b"x" * 300_000)),
            "600000 bytes about its models, where 524288 are taken",
        ),
    ],
)
def test_what_a_device_tells_of_its_models_is_bounded(message: edge_pb2.DeviceMessage, fault: str):
    (closed,) = opened().receive(message, 1.0)
    assert closed == Closed("INVALID_ARGUMENT", f"The device sent {fault}.")


def tried(*trials: edge_pb2.Trial) -> edge_pb2.DeviceMessage:
    return edge_pb2.DeviceMessage(heartbeat=edge_pb2.Heartbeat(trials=trials))


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (tried(*(edge_pb2.Trial(model="m", version=str(n)) for n in range(257))), "more than 256 trials"),
        (tried(edge_pb2.Trial(digest="d" * 257)), "a trial with a name of more than 256 characters"),
        (tried(edge_pb2.Trial(latency_p50_ms=float("inf"))), "a trial with a time that is none"),
        (tried(edge_pb2.Trial(active_p95_ms=float("nan"))), "a trial with a time that is none"),
        (tried(edge_pb2.Trial(active_p50_ms=-1.0)), "a trial with a time that is none"),
    ],
)
def test_what_a_device_tells_of_its_trials_is_bounded(message: edge_pb2.DeviceMessage, fault: str):
    """A time that is no number would pass the gate and be kept with the release."""
    (closed,) = opened().receive(message, 1.0)
    assert closed == Closed("INVALID_ARGUMENT", f"The device sent {fault}.")


def test_a_state_of_a_later_version_is_none_and_a_trials_reason_is_cut():
    later = edge_pb2.Heartbeat.FromString(b"\x12\x05\x0a\x01m\x20\x63\x1a\x05\x0a\x01m\x20\x63")
    assert (later.models[0].state, later.trials[0].state) == (99, 99)
    later.trials[0].reason = "r" * 5000
    (event,) = opened().receive(edge_pb2.DeviceMessage(heartbeat=later), 1.0)
    assert isinstance(event, Beat)
    (model,), (trial,) = event.heartbeat.models, event.heartbeat.trials
    assert (model.state, trial.state, len(trial.reason)) == (0, 0, 1000)


def test_facts_are_short():
    session = Session(TERMS, 0.0)
    message = edge_pb2.DeviceMessage(hello=edge_pb2.Hello(facts={"board": "x" * 257}))
    (closed,) = session.receive(message, 0.0)
    assert closed == Closed("INVALID_ARGUMENT", "The device sent a fact of more than 256 characters.")


def test_readings_that_are_no_numbers_and_long_reasons_are_cut():
    state = edge_pb2.ModelState(model="m", reason="r" * 5000, degraded="d" * 5000)
    nan, inf = float("nan"), float("-inf")
    (event,) = opened().receive(told(state, cpu_percent=nan, temperature_c=inf, battery_percent=40.0), 1.0)
    assert isinstance(event, Beat)
    telemetry, (kept,) = event.heartbeat.telemetry, event.heartbeat.models
    assert [field.name for field, _ in telemetry.ListFields()] == ["battery_percent"]
    assert (len(kept.reason), len(kept.degraded)) == (1000, 1000)


def test_spans_of_any_size_are_not_kept_while_an_answer_arrives():
    session = opened()
    number = ask(session)
    drain(session)
    message = answer(number, 2)
    message.answer.message = "x" * 500_000
    message.answer.spans.add(name="s" * 500_000)
    message.answer.spans.add(name="tidegate.agent.infer", attributes={"k": "v" * 300})
    assert session.receive(message, 0.0) == []
    (event,) = session.receive(data(number, b"ab"), 0.0)
    assert isinstance(event, Answered)
    assert [span.name for span in event.spans] == ["tidegate.agent.infer"]


def test_an_answer_in_the_smallest_pieces_takes_no_more_memory_than_its_size():
    session = opened()
    number = ask(session)
    drain(session)
    session.receive(answer(number, 200_000), 0.0)
    piece = data(number, b"ab")
    tracemalloc.start()
    for _ in range(99_999):
        session.receive(piece, 0.0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 400_000
    (event,) = session.receive(piece, 0.0)
    assert isinstance(event, Answered)
    assert event.body == b"ab" * 100_000
