"""Whom a credential proves a caller to be, and what only a peer gateway may say."""

from __future__ import annotations

import hashlib

import pytest

from gateway.core.config import EndpointConfig
from gateway.core.errors import Refusal
from gateway.core.fleet import Device, group_of
from gateway.core.place import Origin, Place, Tier
from gateway.core.request import ANYBODY, Caller
from gateway.pipeline.callers import Callers
from gateway.pipeline.state import ReplicaState
from oip.reasons import Reason
from tests.support.fakes import config_of

TOKEN = "a-token-of-plant-7-that-nobody-guesses"
OTHER = "a-token-of-plant-9-that-nobody-guesses"
CREDENTIAL = "what-camera-7a-made-for-itself"
PEERS = [
    {"name": "gw-plant-7", "token": TOKEN, "site": "plant-7"},
    {"name": "gw-plant-9", "token": OTHER},
]
CAMERA = Device(
    "cam-7a",
    Place(Tier.DEVICE, site="plant-7", device="cam-7a"),
    connected=False,
    credential_sha256=hashlib.sha256(CREDENTIAL.encode()).digest(),
)
ALLOWED = ("tidegate-allowed", "tier=site")
HOPS = ("tidegate-hops", "gw-plant-7")


def callers(*, peers: bool = True, group: bool = True) -> Callers:
    config = config_of()
    gateway = {**config.gateway.model_dump(), "peers": PEERS if peers else []}
    endpoints: list[object] = list(config.endpoints)
    if group:
        endpoints.append(EndpointConfig(name="cameras", kind="edge"))
    made = config_of(gateway=gateway, endpoints=endpoints)
    state = ReplicaState(made, "r")
    if group:
        state.fleet("cameras", group_of([CAMERA, Device("new", CAMERA.place, connected=False)]))
    return Callers(made, state.device_of)


def shown(*given: str | bytes) -> list[tuple[str, str | bytes]]:
    return [("authorization", value) for value in given]


def refusal(of: Callers, *metadata: tuple[str, str | bytes], inference: bool = False) -> Refusal:
    with pytest.raises(Refusal) as caught:
        of.options(metadata, inference=inference)
    return caught.value


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER   {} ", "\tBearer {}"])
def test_a_peer_is_known_by_its_token_and_its_site_is_the_origin(form: str):
    caller = callers().options(shown(form.format(TOKEN))).caller
    assert caller == Caller(peer="gw-plant-7", origin=Origin("plant-7"))


def test_a_peer_without_a_site_has_no_origin_rather_than_the_gateways_own():
    caller = callers().options(shown(f"Bearer {OTHER}")).caller
    assert caller == Caller(peer="gw-plant-9", origin=Origin(None, None))
    assert caller != ANYBODY


def test_a_device_is_known_by_its_credential_even_while_its_stream_is_away():
    caller = callers().options(shown(f"Bearer {CREDENTIAL}")).caller
    assert caller == Caller(device="cam-7a", origin=Origin("plant-7", "cam-7a"))


def test_without_a_credential_a_caller_is_anybody():
    assert callers().options([("user-agent", "x")]).caller == ANYBODY


@pytest.mark.parametrize(
    "credential",
    [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), hashlib.sha256(TOKEN.encode()).hexdigest(), "é", "\udcff"],
)
def test_a_credential_that_is_nobodys_is_refused_and_not_repeated(credential: str):
    error = refusal(callers(), *shown(f"Bearer {credential}"))
    assert error.reason is Reason.UNAUTHENTICATED
    assert (error.status.grpc, error.status.http) == ("UNAUTHENTICATED", 401)
    assert credential not in error.message + repr(error)


@pytest.mark.parametrize(
    "text",
    ["", " ", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN} {TOKEN}", f"Bearer,{TOKEN}"],
)
def test_what_is_no_bearer_credential_says_what_would_be(text: str):
    error = refusal(callers(), *shown(text))
    assert error.reason is Reason.UNAUTHENTICATED
    assert "'Bearer CREDENTIAL'" in error.message
    assert TOKEN not in error.message


def test_bytes_and_novels_are_no_credentials():
    assert refusal(callers(), *shown(f"Bearer {TOKEN}".encode())).reason is Reason.UNAUTHENTICATED
    assert "longer than 4096" in refusal(callers(), *shown("Bearer " + "x" * 4097)).message


@pytest.mark.parametrize("second", [f"Bearer {TOKEN}", "Bearer x"])
def test_two_credentials_are_none(second: str):
    error = refusal(callers(), *shown(f"Bearer {TOKEN}", second))
    assert (error.reason, error.message) == (
        Reason.UNAUTHENTICATED,
        "authorization is given more than once: give it once",
    )


def test_a_gateway_that_can_know_nobody_does_not_look_at_the_header():
    nobody = callers(peers=False, group=False)
    for given in (shown(f"Bearer {TOKEN}"), shown("Basic x", "Basic y"), shown(b"\0")):
        assert nobody.options(given).caller == ANYBODY


def test_a_gateway_with_a_group_alone_looks_for_devices():
    devices = callers(peers=False)
    assert devices.options(shown(f"Bearer {CREDENTIAL}")).caller.device == "cam-7a"
    assert refusal(devices, *shown(f"Bearer {TOKEN}")).reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("metadata", [[ALLOWED], [HOPS], [ALLOWED, HOPS]])
@pytest.mark.parametrize("known", [True, False])
def test_what_a_peer_may_say_nobody_else_may(metadata: list[tuple[str, str]], known: bool):
    asked = callers() if known else callers(peers=False, group=False)
    for credential in ([], shown(f"Bearer {CREDENTIAL}")):
        error = refusal(asked, *metadata, *credential)
        assert error.reason is Reason.BAD_OPTION
        assert error.message.startswith(f"{metadata[0][0]} is taken from a peer gateway alone")


def test_a_peer_says_where_the_data_of_an_inference_may_go():
    peer = shown(f"Bearer {TOKEN}")
    error = refusal(callers(), *peer, HOPS, inference=True)
    assert error.reason is Reason.BAD_OPTION
    assert "tidegate-allowed" in error.message
    options = callers().options([*peer, ALLOWED, HOPS], inference=True)
    assert options.hops == ("gw-plant-7",)
    assert options.allowed is not None
    assert callers().options(peer).allowed is None  # a question carries no data


def test_an_unknown_credential_is_told_before_a_wrong_option():
    error = refusal(callers(), *shown("Bearer x"), ("tidegate-nope", "1"))
    assert error.reason is Reason.UNAUTHENTICATED


def test_no_credential_is_kept_or_shown():
    known = callers()
    options = known.options([*shown(f"Bearer {TOKEN}"), ALLOWED, HOPS])
    assert TOKEN not in repr(options) + repr(known) + repr(vars(known))


def test_a_device_that_is_no_longer_enrolled_is_nobody():
    config = config_of(endpoints=[*config_of().endpoints, EndpointConfig(name="cameras", kind="edge")])
    state = ReplicaState(config, "r")
    state.fleet("cameras", group_of([CAMERA]))
    known = Callers(config, state.device_of)
    assert known.options(shown(f"Bearer {CREDENTIAL}")).caller.device == "cam-7a"
    state.fleet("cameras", group_of([]))
    assert refusal(known, *shown(f"Bearer {CREDENTIAL}")).reason is Reason.UNAUTHENTICATED
