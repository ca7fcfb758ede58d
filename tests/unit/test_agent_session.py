"""One stream to a hub, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.link.messages import sampled
from edge_agent.link.outbox import PIECE_BYTES
from edge_agent.link.session import (
    MAX_INFLIGHT,
    MAX_UNSENT,
    Desire,
    LinkBroken,
    Session,
    Start,
    Stop,
    Welcomed,
)
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.held import BodyBudget
from oip.reasons import Reason

HERE = Place(Tier.DEVICE, site="plant-7", device="cam-7a")
ALLOWED = "tier=device;site=plant-7"


def message(**kind: Any) -> edge_pb2.HubMessage:
    return edge_pb2.HubMessage(**kind)


def infer(id: int, size: int, timeout_ms: int = 1000, allowed: str = ALLOWED, **more: Any) -> Any:
    return message(infer=edge_pb2.Infer(id=id, size=size, timeout_ms=timeout_ms, allowed=allowed, **more))


def data(id: int, piece: bytes) -> edge_pb2.HubMessage:
    return message(data=edge_pb2.Data(id=id, piece=piece))


def session(max_message: int = 10**6, budget: BodyBudget | None = None, max_body: int = 10**6) -> Session:
    """Welcomed, with its hello sent."""
    made = Session(
        HERE,
        edge_pb2.Hello(agent_version="1"),
        max_body_bytes=max_body,
        budget=budget or BodyBudget(10**7, "device"),
    )
    welcome = edge_pb2.Welcome(
        gateway="gw", heartbeat_ms=2000, max_message_bytes=max_message, place=edge_pb2.Place(tier="cloud")
    )
    assert made.received(message(welcome=welcome), 0.0) == [Welcomed("gw", 2.0, Place(Tier.CLOUD))]
    first = made.outbox.next()
    assert first is not None
    assert first.hello.agent_version == "1"
    return made


def sent(link: Session) -> list[edge_pb2.DeviceMessage]:
    found = []
    while (piece := link.outbox.next()) is not None:
        found.append(piece)
    return found


def only_answer(link: Session) -> edge_pb2.Answer:
    (found,) = sent(link)
    assert found.WhichOneof("kind") == "answer"
    return found.answer


def test_a_request_in_pieces_is_started_when_it_is_whole():
    link = session()
    assert link.received(infer(7, 5, traceparent="t"), 10.0) == []
    assert link.received(data(7, b"abc"), 10.1) == []
    assert link.received(data(7, b"de"), 10.2) == [Start(7, b"abcde", 10.0, 11.0, ALLOWED, "t")]
    link.answered(7, b"xyz", [edge_pb2.Span(name="s")])
    head, body = sent(link)
    assert (head.answer.id, head.answer.size, head.answer.reason) == (7, 3, "")
    assert head.answer.spans[0].name == "s"
    assert (body.data.id, body.data.piece) == (7, b"xyz")
    assert not link.busy


def test_requests_may_be_interleaved():
    link = session()
    link.received(infer(1, 2), 0.0)
    link.received(infer(2, 2), 0.0)
    link.received(data(1, b"a"), 0.0)
    assert link.received(data(2, b"cd"), 0.0) == [Start(2, b"cd", 0.0, 1.0, ALLOWED, "")]
    assert link.received(data(1, b"b"), 0.0) == [Start(1, b"ab", 0.0, 1.0, ALLOWED, "")]


@pytest.mark.parametrize(
    "allowed",
    [
        "",
        "none",
        "tier=device;site=plant-9",
        "tier=device;site=plant-7;device=cam-7b",
        "tier=site;site=plant-7",
        "tier=device;region=eu",
        "tier=device;site=",
        "everything",
        "tier=device,",
    ],
)
def test_what_may_not_come_here_is_refused_before_its_data(allowed: str):
    link = session()
    assert link.received(infer(1, 3, allowed=allowed), 0.0) == []
    answer = only_answer(link)
    assert answer.reason == "privacy"
    assert answer.message == "The places that the request may go to do not hold device 'cam-7a'"
    assert link.received(data(1, b"abc"), 0.0) == []
    assert sent(link) == []


@pytest.mark.parametrize("allowed", ["tier=device", "tier=device;device=cam-7a+cam-7b", "site=plant-7"])
def test_what_may_come_here_runs(allowed: str):
    assert session().received(infer(1, 0, allowed=allowed), 0.0) == [Start(1, b"", 0.0, 1.0, allowed, "")]


def test_limits_are_answered():
    link = session(max_body=10, budget=BodyBudget(15, "device"))
    link.received(infer(1, 11), 0.0)
    assert (answer := only_answer(link)).reason == "too_large"
    assert "11 bytes, more than the device's limit of 10" in answer.message
    link.received(infer(2, 10), 0.0)
    link.received(infer(3, 6), 0.0)
    assert only_answer(link).reason == "overloaded"
    link.received(infer(4, 5, timeout_ms=0), 0.0)
    assert only_answer(link).reason == "deadline"
    link.received(infer(5, 5), 0.0)
    assert sent(link) == []


def test_only_so_many_at_once():
    link = session()
    for id in range(MAX_INFLIGHT):
        assert len(link.received(infer(id, 0), 0.0)) == 1
    assert link.received(infer(MAX_INFLIGHT, 0), 0.0) == []
    assert only_answer(link).reason == "overloaded"


def test_a_request_that_stays_incomplete_is_answered_at_its_deadline():
    link = session()
    link.received(infer(1, 2, timeout_ms=500), 10.0)
    link.received(data(1, b"a"), 10.1)
    link.expire(10.4)
    assert sent(link) == []
    link.expire(10.5)
    assert only_answer(link).reason == "deadline"
    assert link.received(data(1, b"b"), 10.6) == []
    assert not link.busy


def test_a_request_whose_last_piece_comes_too_late_does_not_run():
    link = session()
    link.received(infer(1, 1, timeout_ms=500), 10.0)
    assert link.received(data(1, b"a"), 10.5) == []
    assert only_answer(link).reason == "deadline"


def test_cancel_stops_what_runs_and_what_is_being_sent():
    budget = BodyBudget(10**7, "device")
    link = session(budget=budget)
    cancel = message(cancel=edge_pb2.Cancel(id=1))
    link.received(infer(1, 1), 0.0)
    assert link.received(cancel, 0.0) == []
    link.received(infer(1, 0), 0.0)
    assert link.received(cancel, 0.0) == [Stop(1)]
    link.answered(1, b"late")
    assert sent(link) == []
    link.received(infer(1, 0), 0.0)
    link.answered(1, b"x" * (PIECE_BYTES + 1))
    assert link.outbox.next() is not None
    assert link.outbox.next() is not None
    assert link.received(cancel, 0.0) == []
    assert sent(link) == []
    assert link.received(cancel, 0.0) == []
    assert budget.held == 0


def test_an_answer_over_the_hubs_limit_is_an_error():
    link = session(max_message=3)
    link.received(infer(1, 0), 0.0)
    link.answered(1, b"xyzw")
    answer = only_answer(link)
    assert (answer.reason, answer.size) == ("too_large", 0)
    assert "4 bytes, more than the gateway's limit of 3" in answer.message


def test_a_failure_keeps_its_reason_and_words():
    link = session()
    link.received(infer(1, 0), 0.0)
    link.failed(1, OipError(Reason.MODEL_UNAVAILABLE, "not now"))
    answer = only_answer(link)
    assert (answer.reason, answer.message) == ("model_unavailable", "not now")


def test_control_goes_ahead_and_answers_take_turns():
    link = session()
    for id in (1, 2, 3):
        link.received(infer(id, 0), 0.0)
    link.answered(1, b"a" * (3 * PIECE_BYTES))
    link.answered(2, b"b")
    order = [link.outbox.next() for _ in range(3)]
    assert [m.WhichOneof("kind") for m in order if m] == ["answer", "answer", "data"]
    link.answered(3, b"c")
    link.heartbeat(edge_pb2.Telemetry(cpu_percent=1.0), [])
    link.heartbeat(edge_pb2.Telemetry(cpu_percent=2.0), [])
    rest = sent(link)
    assert [m.WhichOneof("kind") for m in rest[:2]] == ["answer", "heartbeat"]
    assert rest[1].heartbeat.telemetry.cpu_percent == 2.0
    assert [(m.data.id, len(m.data.piece)) for m in rest[2:]] == [
        (2, 1),
        (1, PIECE_BYTES),
        (3, 1),
        (1, PIECE_BYTES),
    ]


def test_draining_refuses_what_is_new():
    link = session()
    link.received(infer(1, 1), 0.0)
    link.drain()
    link.received(infer(2, 1), 0.0)
    assert only_answer(link).reason == "draining"
    assert link.received(data(1, b"a"), 0.0) == [Start(1, b"a", 0.0, 1.0, ALLOWED, "")]


def test_desired_state_goes_on():
    model = edge_pb2.DesiredModel(model="digits", version="1", digest="sha256:00")
    wanted = message(desired=edge_pb2.Desired(models=[model], report_ms=500))
    assert session().received(wanted, 0.0) == [Desire(edge_pb2.Desired(models=[model], report_ms=500))]


def test_what_breaks_the_protocol():
    fresh = Session(HERE, edge_pb2.Hello(), max_body_bytes=1, budget=BodyBudget(1, "device"))
    with pytest.raises(LinkBroken, match="did not say welcome"):
        fresh.received(infer(1, 0), 0.0)
    for welcome in (
        edge_pb2.Welcome(heartbeat_ms=0, max_message_bytes=1),
        edge_pb2.Welcome(heartbeat_ms=2000),
    ):
        with pytest.raises(LinkBroken):
            fresh.received(message(welcome=welcome), 0.0)
    link = session()
    with pytest.raises(LinkBroken, match="welcome twice"):
        link.received(message(welcome=edge_pb2.Welcome(heartbeat_ms=2000, max_message_bytes=1)), 0.0)
    link.received(infer(1, 2), 0.0)
    with pytest.raises(LinkBroken, match="used the id 1 twice"):
        link.received(infer(1, 2), 0.0)
    with pytest.raises(LinkBroken, match="more of a request than it announced"):
        link.received(data(1, b"abc"), 0.0)


@pytest.mark.parametrize(
    ("traceparent", "kept"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", False),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        ("", False),
        ("x", False),
    ],
)
def test_which_contexts_are_sampled(traceparent: str, kept: bool):
    assert sampled(traceparent) is kept


def test_an_empty_piece_breaks_the_link():
    link = session()
    link.received(infer(1, 2), 0.0)
    with pytest.raises(LinkBroken, match="empty piece"):
        link.received(data(1, b""), 0.0)


def test_a_hub_that_asks_on_and_takes_no_answer_is_left():
    link = session()
    for id in range(1, MAX_UNSENT + 1):
        link.received(infer(id, 5, allowed="none"), 0.0)
    with pytest.raises(LinkBroken, match="leaves 1024 answers untaken"):
        link.received(infer(MAX_UNSENT + 1, 5, allowed="none"), 0.0)
