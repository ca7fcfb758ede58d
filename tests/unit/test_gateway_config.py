"""What `kind: gateway` takes in the configuration, and what an upstream's answers mean."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.backends._gateway_status import failure_of
from gateway.backends.gateway import GatewayEndpointConfig
from oip.reasons import STATUS, Reason
from tests.support.processes import output_of

TOKEN = "a-token-of-thirty-two-characters-x"


def config(**changes: Any) -> GatewayEndpointConfig:
    plain = {"name": "up", "kind": "gateway", "url": "grpcs://up:8081", "location": {"tier": "cloud"}}
    return GatewayEndpointConfig.model_validate({**plain, "token": TOKEN, **changes})


@pytest.mark.parametrize(
    "url", ["grpcs://up.eu-west:8081", "grpc://127.0.0.1:8081", "grpc://[::1]:8081", "grpc://localhost:8081"]
)
def test_a_token_goes_over_tls_or_stays_on_this_machine(url: str):
    assert config(url=url).url == url


@pytest.mark.parametrize("host", ["up.eu-west", "10.0.0.1", "0.0.0.0", "[2001:db8::1]", "localhost.evil"])
def test_beyond_loopback_a_token_needs_tls(host: str):
    with pytest.raises(ValidationError, match="would cross the network unprotected: give grpcs://"):
        config(url=f"grpc://{host}:8081")


@pytest.mark.parametrize("token", [None, "", "x" * 31, "x" * 31 + " ", "x" * 31 + "é", "x" * 32 + "\n"])
def test_a_token_is_long_and_fits_a_header_and_is_not_shown(token: str | None):
    with pytest.raises(ValidationError) as caught:
        config(**({"token": token} if token is not None else {"token": 7}))
    assert "x" * 31 not in str(caught.value)


def test_a_token_is_required():
    with pytest.raises(ValidationError, match="token"):
        GatewayEndpointConfig.model_validate(
            {"name": "up", "kind": "gateway", "url": "grpcs://up:1", "location": {"tier": "cloud"}}
        )


def test_the_port_that_is_missing_is_the_gateways():
    with pytest.raises(ValidationError, match="8081 by default"):
        config(url="grpcs://up")


def test_no_repr_shows_the_token():
    assert TOKEN not in repr(config()) + str(config())


def test_a_new_token_is_no_new_server_but_a_new_address_is():
    assert config().identity == config(token=TOKEN[::-1]).identity
    assert config().identity != config(url="grpcs://up:8082").identity


def test_reading_the_parameters_imports_no_grpc():
    program = "import sys, gateway.backends.gateway; print({'grpc', 'tritonclient'} & set(sys.modules))"
    assert output_of([sys.executable, "-c", program]) == "set()\n"


SECRET = "class 'personal' forbids endpoint gpu-east"


@pytest.mark.parametrize(
    ("told", "reason", "retryable"),
    [
        (Reason.PRIVACY, Reason.PRIVACY, True),
        (Reason.LOOP, Reason.LOOP, True),
        (Reason.NO_CANDIDATE, Reason.NO_CANDIDATE, True),
        (Reason.OVERLOADED, Reason.OVERLOADED, True),
        (Reason.UNAVAILABLE, Reason.MODEL_UNAVAILABLE, True),
        (Reason.MODEL_UNAVAILABLE, Reason.MODEL_UNAVAILABLE, True),
        (Reason.DRAINING, Reason.UNAVAILABLE, True),
        (Reason.BAD_OPTION, Reason.ENDPOINT_FAILED, True),
        (Reason.UNKNOWN_MODEL, Reason.UNKNOWN_MODEL, True),
        (Reason.UNKNOWN_VERSION, Reason.UNKNOWN_MODEL, True),
        (Reason.MALFORMED, Reason.MALFORMED, False),
        (Reason.TOO_LARGE, Reason.TOO_LARGE, False),
        (Reason.DEADLINE, Reason.DEADLINE, False),
        (Reason.ENDPOINT_FAILED, Reason.ENDPOINT_FAILED, False),
        (Reason.INTERNAL, Reason.ENDPOINT_FAILED, False),
        (Reason.NOT_SERVED, Reason.NOT_SERVED, False),
    ],
)
def test_what_an_upstream_tells(told: Reason, reason: Reason, retryable: bool):
    error = failure_of("up", STATUS[told].grpc, SECRET, told.value)
    assert (error.reason, error.retryable, error.sent) == (reason, retryable, True)
    if told in (Reason.PRIVACY, Reason.LOOP, Reason.NO_CANDIDATE, Reason.OVERLOADED, Reason.UNAVAILABLE):
        assert error.message.startswith("Endpoint up ")
        assert SECRET not in error.message


@pytest.mark.parametrize(
    ("status", "details", "reason", "sent"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", Reason.UNAVAILABLE, False),
        ("UNAVAILABLE", "Socket closed", Reason.UNAVAILABLE, True),
        ("UNAUTHENTICATED", "the credential in authorization is of nobody", Reason.ENDPOINT_FAILED, True),
        ("PERMISSION_DENIED", SECRET, Reason.PRIVACY, True),
        ("FAILED_PRECONDITION", "x", Reason.LOOP, True),
    ],
)
def test_what_a_status_alone_means(status: str, details: str, reason: Reason, sent: bool):
    error = failure_of("up", status, details, "")
    assert (error.reason, error.sent, error.retryable) == (reason, sent, True)
    assert SECRET not in error.message
