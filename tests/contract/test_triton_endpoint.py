"""The `triton` kind over a real Triton."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import InferInput, service_pb2

from gateway.demo.triton import TritonServer
from tests.contract.endpoint_suite import IDENTITY, SLOW, EndpointSuite
from tests.support.triton import REPOSITORY, slow_log, triton_endpoint


class TritonPlace:
    def __init__(self, server: TritonServer, log: Path) -> None:
        self._server = server
        self._log = log

    def endpoint(self):
        return triton_endpoint(self._server.grpc_port)

    async def straight(self, body: bytes) -> bytes:
        """Through an unmodified tritonclient."""
        request = service_pb2.ModelInferRequest.FromString(body)
        inputs = []
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            given = InferInput(tensor.name, list(tensor.shape), tensor.datatype)
            given._raw_content = raw  # NaN payloads survive no detour over numpy comparison
            inputs.append(given)
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{self._server.grpc_port}") as client:
            result = await client.infer(request.model_name, inputs, request_id=request.id)
        return result.get_response().SerializeToString()

    def cancelled(self) -> set[str]:
        return {name for name, cancelled in slow_log(self._log).items() if cancelled}

    def kill(self) -> None:
        self._server.kill()

    def pause(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)

    def mend(self) -> None:
        if self._server.running:
            os.kill(self._server.pid, signal.SIGCONT)
        else:
            self._server.start()


@pytest.fixture(scope="module")
def triton_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonPlace]:
    log = tmp_path_factory.mktemp("triton") / "slow.log"
    server = TritonServer(REPOSITORY, load=[IDENTITY, SLOW], env={"SLOW_LOG": str(log)})
    server.start()
    yield TritonPlace(server, log)
    server.kill()


class TestTritonEndpoint(EndpointSuite):
    kind = "triton"

    @pytest.fixture
    def place(self, triton_place: TritonPlace) -> TritonPlace:
        return triton_place
