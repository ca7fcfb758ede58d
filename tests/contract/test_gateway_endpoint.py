"""The `gateway` kind over a real gateway's data plane, which has a real Triton behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import InferInput, service_pb2

from edgewire.allowed import AllowedRule, AllowedSet
from gateway.backends.gateway import GatewayEndpoint, GatewayEndpointConfig
from gateway.core.config import Location
from gateway.core.errors import AttemptError
from gateway.core.place import Place, Tier
from gateway.core.ports import Endpoint, Permit, Surroundings
from gateway.core.request import MAX_HOPS
from gateway.demo.triton import TritonServer
from oip.reasons import Reason
from tests.contract.endpoint_suite import IDENTITY, SLOW, EndpointSuite
from tests.support.fakes import config_of
from tests.support.permits import PERMIT
from tests.support.replica import Replica
from tests.support.triton import REPOSITORY, infer_body, slow_log

TOKEN = "the-token-of-a-gateway-in-a-test-0001"

UPSTREAM = """
version: 1
gateway:
  name: up
  location: {{tier: cloud, region: eu}}
  peers: [{{name: gw, token: {token}, site: s1}}]
endpoints:
  - {{name: t, kind: triton, url: "grpc://127.0.0.1:{port}", location: {{tier: cloud, region: eu}}}}
  - {{name: down, kind: triton, url: "grpc://127.0.0.1:1", location: {{tier: cloud, region: eu}}}}
models:
  - {{name: lost, variants: [{{endpoint: down}}]}}
  - {{name: id2d_fp32, idempotent: true, variants: [{{endpoint: t}}]}}
  - {{name: slow_identity, idempotent: true, variants: [{{endpoint: t}}]}}
privacy:
  default: public
  classes:
    public: {{allow: [{{tier: [device, site, regional, cloud]}}]}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""
HERE = Surroundings(config_of(), Path("unused"), lambda name, group: None)


def gateway_endpoint(port: int, token: str = TOKEN) -> GatewayEndpoint:
    """An endpoint named "up", not started."""
    url, location = f"grpc://127.0.0.1:{port}", Location(tier=Tier.CLOUD, region="eu")
    config = GatewayEndpointConfig(name="up", kind="gateway", url=url, location=location, token=token)
    return GatewayEndpoint(config, HERE)


class GatewayPlace:
    def __init__(self, replica: Replica, triton: TritonServer, log: Path) -> None:
        self.replica = replica
        self._triton = triton
        self._log = log

    def endpoint(self) -> Endpoint:
        return gateway_endpoint(self.replica.grpc_port)

    async def straight(self, body: bytes) -> bytes:
        """From the Triton behind it, through an unmodified tritonclient."""
        request = service_pb2.ModelInferRequest.FromString(body)
        inputs = []
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            given = InferInput(tensor.name, list(tensor.shape), tensor.datatype)
            given._raw_content = raw
            inputs.append(given)
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{self._triton.grpc_port}") as client:
            result = await client.infer(request.model_name, inputs, request_id=request.id)
        return result.get_response().SerializeToString()

    def cancelled(self) -> set[str]:
        return {name for name, cancelled in slow_log(self._log).items() if cancelled}

    def kill(self) -> None:
        self.replica.kill()

    def pause(self) -> None:
        self.replica.pause()

    def mend(self) -> None:
        if self.replica.running:
            self.replica.resume()
        else:
            self.replica.start()


@pytest.fixture(scope="module")
def gateway_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPlace]:
    folder = tmp_path_factory.mktemp("upstream")
    triton = TritonServer(REPOSITORY, load=[IDENTITY, SLOW], env={"SLOW_LOG": str(folder / "slow.log")})
    triton.start()
    replica = Replica(UPSTREAM.format(port=triton.grpc_port, token=TOKEN), folder)
    try:
        replica.start()
        yield GatewayPlace(replica, triton, folder / "slow.log")
        replica.kill()
    finally:
        triton.kill()


class TestGatewayEndpoint(EndpointSuite):
    kind = "gateway"

    @pytest.fixture
    def place(self, gateway_place: GatewayPlace) -> GatewayPlace:
        return gateway_place

    async def test_a_token_that_the_upstream_does_not_know_is_said_so(self, place: GatewayPlace):
        stranger = gateway_endpoint(place.replica.grpc_port, TOKEN.upper())
        await stranger.start()
        try:
            health = await stranger.health([(IDENTITY, "")], 5)
            assert (health.up, health.models) == (False, ())
            assert health.detail == "does not know this gateway's token: it must list it among its peers"
            with pytest.raises(AttemptError) as caught:
                await stranger.infer(BODY, (), 5, PERMIT)
            error = caught.value
            assert (error.reason, error.grpc_status) == (Reason.ENDPOINT_FAILED, "UNAUTHENTICATED")
            assert (error.sent, error.retryable) == (True, True)
            assert TOKEN.upper() not in error.message + health.detail + repr(stranger)
        finally:
            await stranger.close()

    async def test_the_set_of_places_is_enforced_again_there(self, endpoint: Endpoint):
        """The upstream's place is allowed, none of its endpoints is: its words stay there."""
        only_here = AllowedSet((AllowedRule(frozenset({Tier.CLOUD}), regions=frozenset({"eu"})),))
        assert await endpoint.infer(BODY, (), 5, Permit(only_here, CLOUD))
        other = AllowedSet((AllowedRule(frozenset({Tier.CLOUD}), regions=frozenset({"us"})),))
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(BODY, (), 5, Permit(other, Place(Tier.CLOUD, region="us")))
        error = caught.value
        assert (error.reason, error.grpc_status) == (Reason.PRIVACY, "PERMISSION_DENIED")
        assert (error.sent, error.retryable) == (True, True)
        assert error.message == "Endpoint up has no place that the request may go to."

    async def test_where_it_may_not_go_nothing_is_sent(self, place: GatewayPlace):
        nowhere = gateway_endpoint(1)  # nothing listens: a call would be UNAVAILABLE
        await nowhere.start()
        for permit in (
            Permit(AllowedSet(()), CLOUD),
            Permit(AllowedSet((AllowedRule(frozenset({Tier.SITE})),)), CLOUD),
            Permit(AllowedSet((AllowedRule(sites=frozenset(f"s{n}" * 20 for n in range(100))),)), FAR),
        ):
            with pytest.raises(AttemptError) as caught:
                await nowhere.infer(BODY, (), 5, permit)
            assert (caught.value.reason, caught.value.sent) == (Reason.PRIVACY, False)
            with pytest.raises(AttemptError) as caught:
                await anext(nowhere.stream(BODY, (), 5, permit))
            assert (caught.value.reason, caught.value.sent) == (Reason.PRIVACY, False)
            with pytest.raises(AttemptError):
                nowhere.under(permit)
        await nowhere.close()

    async def test_a_request_that_was_there_does_not_go_round(self, endpoint: Endpoint):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(BODY, (), 5, Permit(PERMIT.allowed, CLOUD, ("up", "gw")))
        error = caught.value
        assert (error.reason, error.grpc_status) == (Reason.LOOP, "FAILED_PRECONDITION")
        assert (error.sent, error.retryable) == (True, True)
        long = tuple(f"g{n}" for n in range(MAX_HOPS + 1))
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(BODY, (), 5, Permit(PERMIT.allowed, CLOUD, long))
        assert (caught.value.reason, caught.value.sent) == (Reason.LOOP, False)
        with pytest.raises(AttemptError) as caught:
            await anext(endpoint.stream(BODY, (), 5, Permit(PERMIT.allowed, CLOUD, ("up", "gw"))))
        assert (caught.value.reason, caught.value.sent) == (Reason.LOOP, True)

    async def test_the_longest_of_all_that_may_travel_arrives(self, endpoint: Endpoint):
        sites = frozenset(f"{n:03}" + "s" * 120 for n in range(32))
        allowed = AllowedSet((*PERMIT.allowed.rules, AllowedRule(sites=sites)))
        assert 4000 < len(allowed.encode()) <= 4096
        hops = tuple("g" * 127 + format(n, "x") for n in range(MAX_HOPS))
        permit = Permit(allowed, CLOUD, hops, idempotent=True, max_cost=0.5)
        metadata = [("traceparent", f"00-{1:032x}-{1:016x}-00"), ("tracestate", f"a={'x' * 4000}")]
        for _ in range(20):
            assert await endpoint.infer(BODY, metadata, 5, permit)

    async def test_an_upstream_whose_place_is_gone_is_there_itself(self, endpoint: Endpoint):
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(infer_body("lost", np.zeros((1, 1), np.float32)), (), 5, PERMIT)
        error = caught.value
        assert (error.reason, error.grpc_status) == (Reason.NO_CANDIDATE, "UNAVAILABLE")
        assert (error.sent, error.retryable) == (True, True)
        assert error.message == "Endpoint up has no place that can answer."
        lost = infer_body("lost", np.zeros((1, 1), np.float32))
        with pytest.raises(AttemptError) as streamed:
            await anext(endpoint.stream(lost, (), None, PERMIT))
        assert (streamed.value.reason, streamed.value.message) == (error.reason, error.message)
        health = await endpoint.health([("lost", "")], 5)
        assert (health.up, [model.ready for model in health.models]) == (True, [False])


BODY = infer_body(IDENTITY, np.zeros((1, 1), np.float32))
CLOUD = Place(Tier.CLOUD, region="eu")
FAR = Place(Tier.SITE, site="s0" * 20)
