"""Steps of sequences: where the first one went, or nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Reply
from gateway.pipeline.sequences import IDLE_S, MOST, Sequence, Sequences, Step
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


async def drawn() -> Bench:
    """Places that are equally good, so that chance says which one is asked."""
    model = config_of().models[0]
    variants = [{"endpoint": v.endpoint} for v in model.variants]
    return await bench(config_of(models=[{"name": "digits", "idempotent": True, "variants": variants}]))


async def asked(b: Bench, body: bytes) -> Reply:
    return await b.director.infer(call_of(body), CODEC)


def place_of(reply: Reply) -> str:
    assert reply.error is None, reply.error
    return dict(reply.metadata)["tidegate-endpoint"]


def told(reply: Reply) -> tuple[Reason, str]:
    assert reply.error is not None
    return reply.error.reason, reply.error.message


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


def test_what_lies_idle_is_forgotten_and_no_more_are_kept_than_may_be():
    homes, first = Sequences(), Step(Sequence("digits", 7), True, False)
    homes.begun(first, "site", 0.0)
    known = homes.step_of(step(), IDLE_S)
    assert known == replace(first, starts=False, home="site")
    with pytest.raises(OipError, match="START"):
        homes.step_of(step(), IDLE_S + 1)
    assert len(homes) == 0
    for number in range(1, MOST + 2):
        homes.begun(Step(Sequence("digits", number), True, False), "site", 0.0)
    assert len(homes) == MOST
    with pytest.raises(OipError, match="START"):
        homes.step_of(step(1), 0.0)
    assert homes.step_of(step(MOST + 1), 0.0) is not None
