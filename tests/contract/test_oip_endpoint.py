"""The `oip` kind over servers that behave as MLServer and KServe's Python server do."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio
import pytest

from gateway.backends.oip import OipConfig, OipEndpoint
from gateway.core.config import Location
from gateway.core.place import Tier
from tests.contract.endpoint_suite import AnswerSuite, EndpointSuite
from tests.support.oip_server import SERVICE, OipProcess
from tests.support.permits import ALONE


class OipPlace:
    def __init__(self, server: OipProcess, log: Path) -> None:
        self._server = server
        self._log = log

    def endpoint(self) -> OipEndpoint:
        url = f"grpc://127.0.0.1:{self._server.port}"
        return OipEndpoint(
            OipConfig(name="t", kind="oip", url=url, location=Location(tier=Tier.CLOUD)), ALONE
        )

    async def straight(self, body: bytes) -> bytes:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._server.port}") as channel:
            return await channel.unary_unary(f"{SERVICE}ModelInfer")(body)

    def cancelled(self) -> set[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return {json.loads(line)["id"] for line in lines}

    def kill(self) -> None:
        self._server.kill()

    def pause(self) -> None:
        self._server.signal(signal.SIGSTOP)

    def mend(self) -> None:
        if self._server.running:
            self._server.signal(signal.SIGCONT)
        else:
            self._server.start()


@contextmanager
def running(flavour: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OipPlace]:
    log = tmp_path_factory.mktemp("oip") / "slow.log"
    server = OipProcess(flavour, log)
    server.start()
    yield OipPlace(server, log)
    server.kill()


@pytest.fixture(scope="module")
def like_mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OipPlace]:
    with running("mlserver", tmp_path_factory) as place:
        yield place


@pytest.fixture(scope="module")
def like_kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OipPlace]:
    with running("kserve", tmp_path_factory) as place:
        yield place


class TestOipEndpoint(EndpointSuite):
    kind = "oip"
    has_configurations = False

    @pytest.fixture
    def place(self, like_mlserver: OipPlace) -> OipPlace:
        return like_mlserver


class TestOipEndpointToKserve(AnswerSuite):
    """How its connection fares is the same as above."""

    kind = "oip"
    has_configurations = False

    @pytest.fixture
    def place(self, like_kserve: OipPlace) -> OipPlace:
        return like_kserve
