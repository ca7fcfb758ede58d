"""Whatever a hub says, in whatever order: every inference is answered once, nothing is held for ever, and
nothing runs that may not come here."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.link.session import LinkBroken, Session, Start, Stop
from edgewire import allowed
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.held import BodyBudget
from oip.reasons import Reason

HERE = Place(Tier.DEVICE, site="plant-7", device="cam-7a")
BODY = 40
BUDGET = 100

IDS = st.integers(0, 4)
ALLOWED = st.sampled_from(
    [
        "tier=device",
        "tier=device;site=plant-7",
        "tier=device;device=cam-7a",
        "tier=cloud,tier=device;site=plant-7",
        "tier=device;site=plant-9",
        "tier=site+cloud",
        "none",
        "",
        "tier=device;;",
    ]
)
HUB = st.one_of(
    st.builds(
        lambda id, size, ms, text: edge_pb2.HubMessage(
            infer=edge_pb2.Infer(id=id, size=size, timeout_ms=ms, allowed=text)
        ),
        IDS,
        st.integers(0, BODY + 10),
        st.sampled_from([0, 1, 50, 1000]),
        ALLOWED,
    ),
    st.builds(
        lambda id, piece: edge_pb2.HubMessage(data=edge_pb2.Data(id=id, piece=piece)),
        IDS,
        st.binary(max_size=30),
    ),
    st.builds(lambda id: edge_pb2.HubMessage(cancel=edge_pb2.Cancel(id=id)), IDS),
    st.just(edge_pb2.HubMessage(desired=edge_pb2.Desired())),
    st.just(edge_pb2.HubMessage()),
)
DEVICE = st.one_of(
    st.tuples(st.just("finish"), st.integers(0, 10), st.integers(0, 200)),
    st.tuples(st.just("fail"), st.integers(0, 10), st.just(0)),
    st.tuples(st.just("send"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 400), st.just(0)),
)


@dataclass
class World:
    """The session and what the hub and the models saw of it."""

    budget: BodyBudget = field(default_factory=lambda: BodyBudget(BUDGET, "device"))
    now: float = 0.0
    running: dict[int, Start] = field(default_factory=dict)
    pending: dict[int, edge_pb2.Infer] = field(default_factory=dict)
    """Sent by the hub and not answered, cancelled or refused yet."""
    receiving: dict[int, list[int]] = field(default_factory=dict)
    """Announced size and received bytes of answers on their way."""
    data: dict[int, bytes] = field(default_factory=dict)
    given: int = 0
    slots: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = Session(HERE, edge_pb2.Hello(), max_body_bytes=BODY, budget=self.budget)
        welcome = edge_pb2.Welcome(gateway="gw", heartbeat_ms=1000, max_message_bytes=150)
        self.session.received(edge_pb2.HubMessage(welcome=welcome), self.now)
        self.session.outbox.next()

    def hub(self, message: edge_pb2.HubMessage) -> None:
        message = self.numbered(message)
        kind = message.WhichOneof("kind")
        held = self.budget.held
        try:
            effects = self.session.received(message, self.now)
        except LinkBroken:
            assert self.budget.held == held
            return
        if kind == "infer":
            self.pending[message.infer.id] = message.infer
            self.data[message.infer.id] = b""
        elif kind == "data" and message.data.id in self.data:
            self.data[message.data.id] += message.data.piece
        elif kind == "cancel":
            self.pending.pop(message.cancel.id, None)
            self.receiving.pop(message.cancel.id, None)
        for effect in effects:
            if isinstance(effect, Start):
                infer = self.pending[effect.id]
                assert allowed.decode(infer.allowed).allows(HERE)
                assert effect.request == self.data[effect.id]
                assert len(effect.request) == infer.size <= BODY
                assert effect.deadline > self.now
                assert effect.id not in self.running
                self.running[effect.id] = effect
            elif isinstance(effect, Stop):
                del self.running[effect.id]

    def numbered(self, message: edge_pb2.HubMessage) -> edge_pb2.HubMessage:
        """With a number of its own for each inference, as a hub gives them; what follows means the last
        one of its slot."""
        copy = edge_pb2.HubMessage()
        copy.CopyFrom(message)
        match copy.WhichOneof("kind"):
            case "infer":
                self.given += 1
                self.slots[copy.infer.id] = self.given
                copy.infer.id = self.given
            case "data":
                copy.data.id = self.slots.get(copy.data.id, 0)
            case "cancel":
                copy.cancel.id = self.slots.get(copy.cancel.id, 0)
            case _:
                pass
        return copy

    def device(self, step: tuple[str, int, int]) -> None:
        what, number, size = step
        if what in ("finish", "fail"):
            if not self.running:
                return
            id = sorted(self.running)[number % len(self.running)]
            del self.running[id]
            if what == "finish":
                self.session.answered(id, b"r" * size)
            else:
                self.session.failed(id, OipError(Reason.INTERNAL, "x"))
        elif what == "send":
            for _ in range(number):
                self.send()
        else:
            self.now += number / 1000
            self.session.expire(self.now)

    def send(self) -> bool:
        message = self.session.outbox.next()
        if message is None:
            return False
        if message.WhichOneof("kind") == "answer":
            answer = message.answer
            del self.pending[answer.id]
            assert bool(answer.reason) == bool(answer.message)
            self.receiving[answer.id] = [answer.size, 0]
        else:
            announced = self.receiving[message.data.id]
            announced[1] += len(message.data.piece)
            assert announced[1] <= announced[0]
        return True


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(HUB, DEVICE), max_size=40))
def test_every_inference_is_answered_once_and_nothing_is_kept(
    steps: list[edge_pb2.HubMessage | tuple[str, int, int]],
):
    world = World()
    for step in steps:
        if isinstance(step, edge_pb2.HubMessage):
            world.hub(step)
        else:
            world.device(step)
        assert set(world.running) <= set(world.pending)
    world.now += 10
    world.session.expire(world.now)
    for id in list(world.running):
        world.session.answered(id, b"end")
    while world.send():
        pass
    assert world.pending == {}
    assert all(announced == received for announced, received in world.receiving.values())
    assert not world.session.busy
    assert world.budget.held == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(HUB, max_size=25))
def test_an_end_at_any_moment_gives_everything_back(steps: list[edge_pb2.HubMessage]):
    world = World()
    for step in steps:
        world.hub(step)
    for id in list(world.running)[:2]:
        world.session.answered(id, b"r" * 100)
    world.session.close()
    assert world.budget.held == 0
