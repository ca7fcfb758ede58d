"""An edge hub as tests start it: in this process, or by itself in another one (`python -m tests.support.hub`)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.core.config import Config
from gateway.core.release import Orders
from gateway.edgehub.groups import EdgeConfig
from gateway.edgehub.server import HubServer
from gateway.registry.devices import Enrolled
from gateway.store.blobs import BlobStore
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.configs import config_from
from tests.support.counting import Counting
from tests.support.processes import source_env


class ListedRoll:
    """A registry that is a list, with orders. `away` makes it unreachable; `asked` counts the questions."""

    def __init__(self, devices: Iterable[Enrolled] = (), tokens: Mapping[str, str] | None = None) -> None:
        self.devices = {device.name: device for device in devices}
        self.tokens = dict(tokens or {})
        """Sites by token."""
        self.given: Orders | None = Orders()
        """None: not known yet."""
        self.counting = Counting()
        self.away = False
        self.asked = 0

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        if token not in self.tokens:
            raise OipError(Reason.FORBIDDEN, "no such enrolment token")
        self.devices[device] = Enrolled(device, self.tokens[token], {}, credential_sha256)
        return self.devices[device]

    async def enrolled(self) -> Sequence[Enrolled]:
        self.asked += 1
        if self.away:
            raise OipError(Reason.UNAVAILABLE, "the registry is away")
        return list(self.devices.values())

    async def orders(self) -> Orders:
        if self.away or self.given is None:
            raise OipError(Reason.UNAVAILABLE, "control is away")
        return self.given

    async def deliver(self, device: Enrolled, request: bytes) -> bytes:
        if self.away:
            raise OipError(Reason.UNAVAILABLE, "control is away")
        return await self.counting.take(device, request)

    def change(self, name: str, **changes: Any) -> None:
        self.devices[name] = replace(self.devices[name], **changes)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def edge(name: str = "cameras", **select: Any) -> EdgeConfig:
    return EdgeConfig.model_validate({"name": name, "kind": "edge", "select": select})


def hub_config(
    groups: Sequence[EdgeConfig] = (), models: Sequence[Mapping[str, Any]] = (), max_body_mb: float = 64
) -> Config:
    groups = groups or [edge()]
    plain = [{"name": "digits", "variants": [{"endpoint": groups[0].name}]}]
    return config_from(
        {
            "version": 1,
            "gateway": {
                "name": "gw-plant-7",
                "location": {"tier": "site", "site": "plant-7"},
                "limits": {"max_body_mb": max_body_mb},
            },
            "endpoints": list(groups),
            "models": list(models) or plain,
            "privacy": {"default": "open", "classes": {"open": {"allow": [{"tier": ["device", "site"]}]}}},
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1.0}}],
        }
    )


@dataclass(slots=True)
class Running:
    """A hub in this process. `devices` is HOST:PORT, `inside` the inner gRPC target."""

    server: HubServer
    roll: ListedRoll
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    @property
    def inside(self) -> str:
        return self.server.target


@contextlib.asynccontextmanager
async def running_hub(
    roll: ListedRoll,
    config: Config | None = None,
    blobs: BlobStore | None = None,
    heartbeat_s: float = 0.5,
    port: int = 0,
) -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory(prefix="hub") as folder:
        server = HubServer(
            config or hub_config(),
            ("127.0.0.1", port),
            Path(folder) / "run" / "hub.sock",
            roll,
            blobs or BlobStore(None, Path(folder)),
            heartbeat_s,
        )
        await server.start()
        try:
            yield Running(server, roll, Path(folder))
        finally:
            await server.close(0)


class HubProcess:
    """A hub in a process of its own, which can be killed, stopped and started at the same addresses."""

    def __init__(
        self, folder: Path, devices: Sequence[Enrolled], port: int, heartbeat_s: float = 0.5
    ) -> None:
        self._socket = folder / "hub.sock"
        self._port = port
        listed = [{**asdict(d), "credential_sha256": d.credential_sha256.hex()} for d in devices]
        told = {"devices": listed, "port": port, "socket": str(self._socket), "beat": heartbeat_s}
        self._file = folder / "hub.json"
        self._file.write_text(json.dumps(told))
        self._process: subprocess.Popen[str] | None = None

    @property
    def devices(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def inside(self) -> str:
        return f"unix:{self._socket}"

    def start(self) -> None:
        """Returns once it listens."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hub", str(self._file)],
            env=source_env(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


async def _serve(told: dict[str, Any]) -> None:
    devices = [
        Enrolled(**{**d, "credential_sha256": bytes.fromhex(d["credential_sha256"])}) for d in told["devices"]
    ]
    server = HubServer(
        hub_config(),
        ("127.0.0.1", told["port"]),
        Path(told["socket"]),
        ListedRoll(devices),
        BlobStore(None, Path(told["socket"]).parent),
        told["beat"],
    )
    await server.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(Path(sys.argv[1]).read_text())))
