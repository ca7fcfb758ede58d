"""Steps of sequences: where the first one went, or nowhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Reply
from gateway.core.homes import Home
from gateway.core.ports import Homes
from gateway.pipeline.sequences import OwnHomes, step_of
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature
from tests.support.fakes import CODEC, Bench, bench, call_of, config_of, failure, request

pb: Any = service_pb2


def step(sequence: int | str = 7, *, start: bool = False, end: bool = False, model: str = "digits") -> bytes:
    message = pb.ModelInferRequest.FromString(request(model))
    kind = "int64_param" if isinstance(sequence, int) else "string_param"
    setattr(message.parameters["sequence_id"], kind, sequence)
    message.parameters["sequence_start"].bool_param = start
    message.parameters["sequence_end"].bool_param = end
    return message.SerializeToString()


async def drawn(homes: Homes | None = None) -> Bench:
    """Places that are equally good, so that chance says which one is asked."""
    model = config_of().models[0]
    variants = [{"endpoint": v.endpoint} for v in model.variants]
    return await bench(
        config_of(models=[{"name": "digits", "idempotent": True, "variants": variants}]), homes
    )


async def asked(b: Bench, body: bytes) -> Reply:
    return await b.director.infer(call_of(body), CODEC)


def place_of(reply: Reply) -> str:
    assert reply.error is None, reply.error
    return dict(reply.metadata)["tidegate-endpoint"]


def told(reply: Reply) -> tuple[Reason, str]:
    assert reply.error is not None
    return reply.error.reason, reply.error.message


async def test_a_start_of_another_kind_is_no_step_without_one():
    message = pb.ModelInferRequest.FromString(step())
    message.parameters["sequence_start"].int64_param = 1
    reason, words = told(await asked(await drawn(), message.SerializeToString()))
    assert (reason, words) == (
        Reason.MALFORMED,
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    )


async def test_every_step_goes_where_the_first_one_went():
    b = await drawn()
    homes = {number: place_of(await asked(b, step(number, start=True))) for number in range(1, 31)}
    assert set(homes.values()) == {"site", "cloud", "far"}
    for _ in range(3):
        assert {n: place_of(await asked(b, step(n))) for n in homes} == homes
    record = b.records.get(dict((await asked(b, step(1))).metadata)["tidegate-decision"])
    assert record is not None
    notes = {c["endpoint"]: [r["rule"] for r in c["reasons"]] for c in record["candidates"]}
    assert [name for name, rules in notes.items() if "sequence" not in rules] == [homes[1]]


async def test_a_number_and_the_same_in_letters_are_two_sequences():
    b = await drawn()
    await asked(b, step(7, start=True))
    reason, message = told(await asked(b, step("7")))
    assert reason is Reason.MALFORMED
    assert "sequence '7' to model 'digits' must specify the START flag on the first request" in message


@pytest.mark.parametrize("none", [0, ""])
async def test_no_id_is_no_sequence(none: int | str):
    b = await drawn()
    assert {place_of(await asked(b, step(none))) for _ in range(40)} == {"site", "cloud", "far"}


async def test_an_ended_sequence_is_begun_anew():
    b = await drawn()
    await asked(b, step(start=True))
    place_of(await asked(b, step(end=True)))
    assert told(await asked(b, step()))[0] is Reason.MALFORMED
    place_of(await asked(b, step(start=True, end=True)))
    assert told(await asked(b, step()))[0] is Reason.MALFORMED


async def test_a_step_is_tried_once_and_its_sequence_stays():
    b = await drawn()
    home = place_of(await asked(b, step(start=True)))

    async def gone(message: Any, timeout_s: float) -> bytes:
        raise failure(Reason.MODEL_UNAVAILABLE, sent=False)

    kept, b.endpoints[home].behaviour = b.endpoints[home].behaviour, gone
    seen = {name: len(endpoint.seen) for name, endpoint in b.endpoints.items()}
    assert told(await asked(b, step()))[0] is Reason.MODEL_UNAVAILABLE
    assert {n: len(e.seen) - seen[n] for n, e in b.endpoints.items() if len(e.seen) - seen[n]} == {home: 1}
    b.endpoints[home].behaviour = kept
    assert place_of(await asked(b, step())) == home


async def test_a_home_that_is_down_is_no_reason_to_go_elsewhere():
    b = await drawn()
    home = place_of(await asked(b, step(start=True)))
    b.state.gone(home)
    assert told(await asked(b, step()))[0] is Reason.NO_CANDIDATE
    assert place_of(await asked(b, step(start=True))) != home


async def test_a_first_step_that_fails_leaves_no_home():
    b = await drawn()

    async def gone(message: Any, timeout_s: float) -> bytes:
        raise failure(Reason.ENDPOINT_FAILED)

    for endpoint in b.endpoints.values():
        endpoint.behaviour = gone
    assert told(await asked(b, step(start=True)))[0] is Reason.ENDPOINT_FAILED
    assert sum(len(endpoint.seen) for endpoint in b.endpoints.values()) == 1
    assert told(await asked(b, step()))[0] is Reason.MALFORMED


async def test_a_class_that_forbids_the_home_keeps_the_step_from_it():
    b = await drawn()
    numbers = range(1, 31)
    homes = {n: place_of(await asked(b, step(n, start=True))) for n in numbers}
    away = next(n for n in numbers if homes[n] == "far")
    reply = await b.director.infer(call_of(step(away), privacy="eu"), CODEC)
    assert told(reply)[0] in (Reason.PRIVACY, Reason.NO_CANDIDATE)
    assert len(b.endpoints["far"].seen) == sum(home == "far" for home in homes.values())


async def test_where_no_place_keeps_state_the_parameters_mean_nothing():
    b = await drawn()
    for key in list(b.state.snapshot.variants):
        b.state.learnt(key, Signature((), ()), 0.0)
    assert {place_of(await asked(b, step())) for _ in range(40)} == {"site", "cloud", "far"}
    key = next(iter(b.state.snapshot.variants))
    b.state.learnt(key, Signature((), (), stateful=True), 0.0)
    assert told(await asked(b, step()))[0] is Reason.MALFORMED


class Away(OwnHomes):
    """Homes that cannot be asked."""

    async def begin(self, sequence: str, home: Home) -> None:
        raise OipError(Reason.UNAVAILABLE, "control is not available")

    async def find(self, sequence: str) -> Home | None:
        raise OipError(Reason.UNAVAILABLE, "control is not available")


async def test_nothing_is_sent_while_nobody_can_say_where():
    b = await drawn(Away())
    for body in (step(start=True), step(), step(end=True)):
        assert told(await asked(b, body)) == (Reason.UNAVAILABLE, "control is not available")
    assert not any(endpoint.seen for endpoint in b.endpoints.values())


async def test_replicas_that_share_their_homes_are_one():
    homes = OwnHomes()
    first, second = await drawn(homes), await drawn(homes)
    for number in range(1, 21):
        home = place_of(await asked(first, step(number, start=True)))
        assert place_of(await asked(second, step(number))) == home
        new = place_of(await asked(second, step(number, start=True)))
        assert {place_of(await asked(b, step(number))) for b in (first, second)} == {new}
        place_of(await asked(first, step(number, end=True)))
        assert told(await asked(second, step(number)))[0] is Reason.MALFORMED


async def test_an_old_beginning_ends_nothing_that_was_begun_since():
    """The first START hangs at one replica, the caller begins anew at the other, then the first one fails."""
    homes = OwnHomes()
    first, second = await drawn(homes), await drawn(homes)
    entered, release = asyncio.Event(), asyncio.Event()

    async def hangs(message: Any, timeout_s: float) -> bytes:
        entered.set()
        await release.wait()
        raise failure(Reason.ENDPOINT_FAILED)

    for endpoint in first.endpoints.values():
        endpoint.behaviour = hangs
    late = asyncio.create_task(asked(first, step(start=True)))
    await entered.wait()
    home = place_of(await asked(second, step(start=True)))
    release.set()
    assert told(await late)[0] is Reason.ENDPOINT_FAILED
    assert place_of(await asked(second, step())) == home


def test_what_a_step_is():
    first = step_of(step(start=True))
    assert first is not None
    assert (first.model, first.id, first.starts, first.ends, first.home) == ("digits", 7, True, False, None)
    assert step_of(request()) is None
    names = [step_of(body) for body in (step(7), step("7"), step(77), step(7, model="digits7"))]
    assert len({each.sequence for each in names if each is not None}) == len(names)
    assert first.sequence == step_of(step(7, end=True)).sequence  # pyright: ignore[reportOptionalMemberAccess]
