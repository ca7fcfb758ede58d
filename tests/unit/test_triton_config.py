"""What `kind: triton` takes in the configuration."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.backends._channel import OipChannel
from gateway.backends.triton import TritonConfig, TritonEndpoint
from gateway.core.errors import AttemptError, TidegateError
from gateway.demo.triton import trace_args
from oip.reasons import Reason
from tests.support.permits import ALONE
from tests.support.processes import output_of


def config(**changes: Any) -> TritonConfig:
    return TritonConfig.model_validate(
        {"name": "t", "kind": "triton", "url": "grpc://gpu:8001", "location": {"tier": "cloud"}, **changes}
    )


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("grpc://gpu.eu-west:8001", "gpu.eu-west:8001"),
        ("grpcs://10.0.0.1:1", "10.0.0.1:1"),
        ("grpc://[::1]:8001", "[::1]:8001"),
    ],
)
def test_good_urls(url: str, target: str):
    assert config(url=url).target == target


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://gpu:8000", "the scheme is 'http'"),
        ("gpu:8001", "give grpc://HOST:PORT"),
        ("", "give grpc://HOST:PORT"),
        ("grpc://gpu", "the port is missing"),
        ("grpc://gpu:0", "the port is missing"),
        ("grpc://gpu:99999", "from 1 to 65535"),
        ("grpc://gpu:http", "from 1 to 65535"),
        ("grpc://:8001", "the host is missing"),
        ("grpc://gpu:8001/", "nothing before the host or after the port"),
        ("grpc://gpu:8001/v2", "nothing before the host or after the port"),
        ("grpc://gpu:8001?x=1", "nothing before the host or after the port"),
        ("grpc://me@gpu:8001", "nothing before the host or after the port"),
    ],
)
def test_bad_urls_say_what_to_give(url: str, says: str):
    with pytest.raises(ValidationError, match=says):
        config(url=url)


def test_tls_files_go_with_grpcs_and_in_pairs():
    with pytest.raises(ValidationError, match="url is not grpcs"):
        config(tls={"ca_file": "ca.pem"})
    with pytest.raises(ValidationError, match="both or neither"):
        config(url="grpcs://gpu:8001", tls={"cert_file": "c.pem"})
    with pytest.raises(ValidationError, match="Extra inputs"):
        config(url="grpcs://gpu:8001", tls={"insecure": True})


async def test_a_tls_file_that_cannot_be_read_is_named_at_the_start():
    endpoint = TritonEndpoint(config(url="grpcs://gpu:8001", tls={"ca_file": "/nowhere/ca.pem"}), ALONE)
    with pytest.raises(TidegateError, match=r"Endpoint t: tls.ca_file '/nowhere/ca.pem' cannot be read"):
        await endpoint.start()
    await endpoint.close()


def test_reading_the_parameters_imports_no_grpc():
    program = "import sys, gateway.backends.triton; print({'grpc', 'tritonclient'} & set(sys.modules))"
    assert output_of([sys.executable, "-c", program]) == "set()\n"


def test_a_trace_address_must_be_one():
    with pytest.raises(ValueError, match="http://"):
        trace_args("127.0.0.1:4318")


async def test_a_load_waits_for_a_release_no_longer_than_it_may():
    endpoint = TritonEndpoint(config(), ALONE)
    async with endpoint._moves:
        for order in (endpoint.load("m", "", 0.01), endpoint.unload("m", False, 0.01)):
            with pytest.raises(AttemptError) as caught:
                await order
            assert (caught.value.reason, caught.value.sent) == (Reason.OVERLOADED, False)


async def test_a_model_that_is_only_tried_before_its_release_is_not_had(monkeypatch: pytest.MonkeyPatch):
    async def ready_models(channel: OipChannel, timeout_s: float) -> frozenset[str]:
        return frozenset({"digits", "digits.tidegate-trial"})

    monkeypatch.setattr(OipChannel, "ready_models", ready_models)
    assert await TritonEndpoint(config(), ALONE).ready_models(1.0) == {"digits"}
