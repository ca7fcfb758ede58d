"""The `edge` kind over a real hub, in a process of its own, and a simulated device."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgewire.allowed import AllowedRule, AllowedSet
from edgewire.v1 import edge_pb2
from gateway.backends.edge import EdgeEndpoint
from gateway.core.errors import AttemptError
from gateway.core.place import Place, Tier
from gateway.core.ports import Endpoint, Permit
from oip.reasons import Reason
from tests.contract.endpoint_suite import IDENTITY, EndpointSuite
from tests.support.hub import HubProcess, edge
from tests.support.permits import ALONE, PERMIT
from tests.support.processes import source_env
from tests.support.simfleet import Given, enrolled, run_fixture
from tests.support.triton import infer_body

DEVICE = "cam-1"
TO_DEVICE = replace(
    PERMIT,
    place=Place(Tier.DEVICE, site="plant-7", device=DEVICE),
    device=DEVICE,
    allowed=AllowedSet((AllowedRule(tiers=frozenset({Tier.DEVICE})),)),
)


class ToOneDevice(EdgeEndpoint):
    """The group when its one device has been chosen, as the suite knows nothing of choosing."""

    kind = ""

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        return await super().infer(body, metadata, timeout_s, TO_DEVICE)


class EdgePlace:
    """The hub and the device, each a process; the device reconnects by itself."""

    def __init__(self, hub: HubProcess, log: Path) -> None:
        self._hub = hub
        self._log = log
        command = [sys.executable, "-m", "tests.support.simfleet", hub.devices, DEVICE, str(log)]
        self._device = subprocess.Popen(command, env=source_env())

    def endpoint(self) -> Endpoint:
        return ToOneDevice(edge("e"), replace(ALONE, hub=self._hub.inside))

    async def straight(self, body: bytes) -> bytes:
        return await run_fixture(None, Given(edge_pb2.Infer(), body))

    def cancelled(self) -> set[str]:
        return set(self._log.read_text().split()) if self._log.exists() else set()

    def kill(self) -> None:
        self._hub.kill()

    def pause(self) -> None:
        self._hub.pause()

    def mend(self) -> None:
        if self._hub.running:
            self._hub.go_on()
        else:
            self._hub.start()

    async def ready(self) -> None:
        """Until the device is there and has told what it runs."""
        endpoint = self.endpoint()
        await endpoint.start()
        for _ in range(300):
            health = await endpoint.health([(IDENTITY, "")], 1)
            if health.models and health.models[0].ready:
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail(f"the device never was ready: {health}")
        await endpoint.close()

    def close(self) -> None:
        self._device.kill()
        self._device.wait()
        self._hub.kill()


@pytest.fixture(scope="module")
def edge_place() -> Iterator[EdgePlace]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="hub") as folder:
        hub = HubProcess(Path(folder), [enrolled(DEVICE)], port)
        hub.start()
        place = EdgePlace(hub, Path(folder) / "cancelled")
        yield place
        place.close()


class TestEdgeEndpoint(EndpointSuite):
    kind = "edge"

    @pytest.fixture
    async def place(self, edge_place: EdgePlace) -> EdgePlace:
        await edge_place.ready()
        return edge_place

    async def test_metadata_that_cannot_be_sent_harms_nothing_else(self, endpoint: Endpoint):
        """Of a call's metadata only the trace's parent goes to a device, inside a message."""
        body = infer_body(IDENTITY, np.zeros((1, 1), np.float32))
        assert await endpoint.infer(body, [("tracestate", "a\nb")], 10, PERMIT)
        with pytest.raises(AttemptError) as caught:
            await endpoint.infer(body, [("traceparent", "\ud800")], 10, PERMIT)
        assert (caught.value.reason, caught.value.sent) == (Reason.INTERNAL, False)
        assert await endpoint.infer(body, (), 10, PERMIT)
