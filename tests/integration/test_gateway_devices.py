"""Devices of a running gateway: enrolment, the operator API and CLI, and what a killed part does to them."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edgewire.v1 import edge_pb2, edge_pb2_grpc
from gateway.serve.settings import Address
from tests.support.gateway import Gateway, running_gateway
from tests.support.released import Client
from tests.support.simfleet import SimDevice, active, run_fixture
from tests.support.tflite_models import difference, golden_file
from tests.support.waiting import until

CLI = [sys.executable, "-m", "gateway.cli.main", "devices"]
CONFIG = """
version: 1
gateway: {name: gw-plant-7, location: {tier: site, site: plant-7}}
endpoints:
  - {name: cameras, kind: edge, select: {site: [plant-7]}}
models:
  - {name: id2d_fp32, idempotent: true, variants: [{endpoint: cameras, artifact: any.tflite}]}
privacy:
  default: personal
  classes:
    personal: {allow: [{tier: [device, site], same: [site]}]}
policies: [{name: default, match: {}, weights: {latency: 1}}]
"""
REQUEST = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]}]}


def with_artifact(folder: Path) -> Path:
    """The simulated devices run no file, but the configuration names one."""
    (folder / "any.tflite").write_bytes(b"not looked into")
    return folder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(CONFIG, with_artifact(tmp_path_factory.mktemp("gw"))) as found:
        yield found


def cli(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *arguments],
        env={**os.environ, "TIDEGATE_URL": f"http://{gateway.http}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def models_cli(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI[:-1], "models", *arguments, "--url", gateway.http], capture_output=True, text=True, timeout=120
    )


def token_of(gateway: Gateway, **query: object) -> str:
    answer = httpx.post(f"http://{gateway.http}/api/v1/devices/tokens", json={"site": "plant-7", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()["token"]


def enrol(gateway: Gateway, token: str, name: str, credential: str) -> edge_pb2.EnrolReply:
    digest = hashlib.sha256(credential.encode()).digest()
    assert gateway.edge is not None
    with grpc.insecure_channel(gateway.edge) as channel:
        return edge_pb2_grpc.EdgeHubStub(channel).Enrol(
            edge_pb2.EnrolRequest(token=token, device=name, credential_sha256=digest), timeout=10
        )


def device_of(gateway: Gateway, name: str) -> SimDevice:
    """A device that runs the fixture model, not started yet."""
    assert gateway.edge is not None
    enrol(gateway, token_of(gateway, labels={"soc": "imx8mp"}), name, f"secret-of-{name}")
    readings = edge_pb2.Telemetry(temperature_c=41.5, battery_percent=80)
    return SimDevice(gateway.edge, name, run_fixture, [active("id2d_fp32")], telemetry=readings)


@contextlib.asynccontextmanager
async def there(gateway: Gateway, name: str):
    """An enrolled device that the gateway sees as connected with its model ready."""
    device = await asyncio.to_thread(device_of, gateway, name)
    device.start()
    try:
        await seen(gateway, name)
        yield device
    finally:
        await device.stop()


async def seen(gateway: Gateway, name: str, timeout_s: float = 60.0) -> None:
    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"http://{gateway.http}/api/v1/devices/{name}", timeout=10)
            return answer.status_code == 200 and answer.json()["connected"] and bool(answer.json()["models"])
        return False

    await holds(ready, timeout_s)


async def holds(condition, timeout_s: float = 60.0) -> None:
    """As `until`, for a question that blocks: the device answers meanwhile."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await asyncio.to_thread(condition):
                return
            await asyncio.sleep(0.05)


def inner_socket(gateway: Gateway) -> Path:
    """Of the hub as it runs now."""
    found: set[str] = set()
    for process in psutil.Process(gateway.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr for c in process.net_connections("unix") if str(c.laddr).endswith("/hub.sock")}
    (path,) = found
    return Path(path)


def infer(gateway: Gateway) -> httpx.Response:
    return httpx.post(f"http://{gateway.http}/v2/models/id2d_fp32/infer", json=REQUEST, timeout=15)


def answered(gateway: Gateway) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        answer = infer(gateway)
        return answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [1.5, -2.0]
    return False


async def test_device_is_enrolled_seen_asked_drained_and_shut_out(gateway: Gateway):
    async with there(gateway, "cam-7a") as device:
        view = await asyncio.to_thread(gateway.get, "/api/v1/devices/cam-7a")
        assert (view["site"], view["labels"]) == ("plant-7", {"soc": "imx8mp"})
        assert (view["drained"], view["revoked"]) == (False, False)
        assert view["telemetry"] == {"temperature_c": 41.5, "battery_percent": 80}
        assert view["silent_s"] < 10
        (model,) = view["models"]
        assert (model["model"], model["state"], model["active_version"]) == ("id2d_fp32", "active", "1")
        assert "credential" not in json.dumps(view)

        await holds(lambda: answered(gateway))
        answer = await asyncio.to_thread(infer, gateway)
        assert answer.headers["tidegate-endpoint"] == "cameras"
        assert answer.headers["tidegate-tier"] == "device"
        text = (await asyncio.to_thread(httpx.get, f"http://{gateway.metrics}/metrics")).text
        assert 'tidegate_devices{state="connected"} 1.0' in text

        listed = await asyncio.to_thread(cli, gateway, "list")
        assert listed.returncode == 0, listed.stderr
        assert "cam-7a" in listed.stdout
        assert "connected" in listed.stdout
        shown = await asyncio.to_thread(cli, gateway, "show", "cam-7a")
        assert "41.5" in shown.stdout
        assert "id2d_fp32" in shown.stdout

        drained = await asyncio.to_thread(cli, gateway, "drain", "cam-7a")
        assert drained.stdout == "cam-7a gets no new requests\n"
        await holds(lambda: infer(gateway).status_code == 503)
        await asyncio.to_thread(cli, gateway, "drain", "cam-7a", "--undo")
        await holds(lambda: answered(gateway))

        revoked = await asyncio.to_thread(cli, gateway, "revoke", "cam-7a", "--json")
        assert json.loads(revoked.stdout)["revoked"] is True
        await until(lambda: any(status == "PERMISSION_DENIED" for status, _ in device.ends))
        await holds(lambda: infer(gateway).status_code == 503)
        # The name is free again, for another credential.
        again = await asyncio.to_thread(token_of, gateway, device="cam-7a")
        assert (await asyncio.to_thread(enrol, gateway, again, "", "another")).device == "cam-7a"


async def test_bench_lets_the_gateway_measure_its_devices(gateway: Gateway):
    """Two devices of the group: what they take together is its capacity."""
    bench = [*CLI[:-1], "bench", "id2d_fp32", "--json", "-f", str(gateway.log.parent / "tidegate.yaml")]
    bench += ["--state-dir", str(gateway.log.parent / "elsewhere"), "--url", f"http://{gateway.http}"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(bench, capture_output=True, text=True, timeout=120)

    async with there(gateway, "cam-7m") as one, there(gateway, "cam-7n") as other:
        done = await asyncio.to_thread(run)
        assert done.returncode == 0, done.stderr
        (outcome,) = json.loads(done.stdout)
        assert outcome["error"] is None
        assert outcome["profile"]["capacity_rps"] > 1000 / outcome["profile"]["latency_p95_ms"] / 2
        assert min(one.given, other.given) > 0.3 * max(one.given, other.given)

        def taken_in() -> bool:
            (view,) = gateway.get("/api/v1/endpoints")
            return view["models"][0]["capacity_rps"] == outcome["profile"]["capacity_rps"]

        await holds(taken_in)
    await holds(lambda: infer(gateway).status_code == 503)
    done = await asyncio.to_thread(run)
    assert done.returncode == 1
    assert "tidegate: cameras: " in done.stderr
    assert "Traceback" not in done.stderr


def test_token_enrols_once_and_says_so_in_one_sentence(gateway: Gateway):
    issued = cli(gateway, "token", "--site", "plant-7", "--label", "soc=imx8mp", "--device", "cam-7t")
    assert issued.returncode == 0, issued.stderr
    token = issued.stdout.strip()
    assert "cam-7t at plant-7" in issued.stderr
    first = enrol(gateway, token, "", "one")
    assert (first.device, first.site, dict(first.labels)) == ("cam-7t", "plant-7", {"soc": "imx8mp"})
    assert enrol(gateway, token, "", "one") == first
    view = gateway.get("/api/v1/devices/cam-7t")
    assert (view["connected"], view["silent_s"], view["models"]) == (False, None, [])
    with pytest.raises(grpc.RpcError) as refused:
        enrol(gateway, token, "", "two")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "used already" in refused.value.details()
    assert token not in refused.value.details()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["token"], 2, "--site"),
        (["token", "--site", "plant 7"], 2, "no name for a site"),
        (["token", "--site", "plant-7", "--label", "soc"], 2, "KEY=VALUE"),
        (["token", "--site", "plant-7", "--label", "a=1", "--label", "a=2"], 2, "twice"),
        (["token", "--site", "plant-7", "--ttl", "an hour"], 2, "--ttl"),
        (["token", "--site", "plant-7", "--ttl", "31d"], 2, "at most"),
        (["show", "nope"], 2, "no device 'nope'"),
        (["drain", "a/../b"], 2, "no device 'a/../b'"),
        (["revoke", "nope", "--url", "http://127.0.0.1:1"], 1, "no gateway at"),
    ],
)
def test_mistakes_at_the_command_line_get_one_line(
    gateway: Gateway, arguments: list[str], code: int, word: str
):
    done = cli(gateway, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_listeners_are_on_loopback_and_the_inner_socket_is_in_a_private_folder(gateway: Gateway):
    root = psutil.Process(gateway.process.pid)
    listening: set[tuple[str, int]] = set()
    for process in (root, *root.children(recursive=True)):
        for connection in process.net_connections():
            if connection.status == psutil.CONN_LISTEN:
                listening.add((connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port))
    assert gateway.edge is not None
    host, port = gateway.edge.rsplit(":", 1)
    assert (host, int(port)) in listening
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}
    inner = inner_socket(gateway)
    assert inner.parent.parent == Path(tempfile.gettempdir())
    assert inner.parent.stat().st_mode & 0o777 == 0o700


async def test_a_pushed_release_that_its_gate_refuses_is_signed_and_offered_to_nobody(
    gateway: Gateway, tmp_path: Path
):
    """Tens of megabytes pass; what the hub gives devices is what was signed."""

    async def shown() -> Any:
        told = await asyncio.to_thread(models_cli, gateway, "show", "id2d_fp32", "--json")
        return json.loads(told.stdout)

    async with there(gateway, "cam-4") as device:
        (tmp_path / "id2d.onnx").write_bytes(os.urandom(30_000_000))
        (tmp_path / "id2d.tflite").write_bytes(difference())
        a = np.array([1, 2], np.float32)
        vectors = golden_file(tmp_path, [({"a": a, "b": a}, {"c": a - a})], 0.1)
        (tmp_path / "id2d.tflite.golden.npz").write_bytes(vectors)
        files = [str(tmp_path / name) for name in ("id2d.onnx", "id2d.tflite")]
        pushed = await asyncio.to_thread(models_cli, gateway, "push", "id2d_fp32", *files)
        assert (pushed.returncode, pushed.stdout, pushed.stderr) == (
            0,
            "id2d_fp32 version 2: candidate\n",
            "",
        )
        # Its gate has nothing to hold it against here.
        async with asyncio.timeout(30):
            model = await shown()
            while model["releases"][-1]["stage"] == "candidate":
                model = await shown()
        first, second = model["releases"]
        assert (first["version"], first["stage"], first["standing"]) == ("1", "passed", True)
        assert (second["version"], second["stage"], second["standing"]) == ("2", "refused", False)
        assert model["differences"] == []
        compat = await asyncio.to_thread(
            models_cli, gateway, "compat", "id2d_fp32", "--version", "2", "--json"
        )
        assert [(row["device"], row["ok"]) for row in json.loads(compat.stdout) if row["connected"]] == [
            ("cam-4", True)
        ]
        assert device.desired is not None
        assert [(m.version, m.target) for m in device.desired.models] == [("1", "id2d_fp32/1/cameras")]
        reply = await asyncio.to_thread(
            enrol, gateway, await asyncio.to_thread(token_of, gateway), "cam-5", "secret-of-cam-5"
        )
        assert gateway.edge is not None
        signed = tmp_path / "signed"
        signed.mkdir()
        async with grpc.aio.insecure_channel(gateway.edge) as channel:
            stub = edge_pb2_grpc.EdgeHubStub(channel)
            metadata = (("authorization", "Bearer secret-of-cam-5"),)
            name = "timestamp.json"
            for refers_to in ("snapshot.json", "targets.json", None):
                call = stub.Metadata(edge_pb2.MetadataRequest(name=name), metadata=metadata)
                (signed / name).write_bytes(b"".join([chunk.piece async for chunk in call]))
                if refers_to is not None:
                    meta = json.loads((signed / name).read_bytes())["signed"]["meta"]
                    name = f"{meta[refers_to]['version']}.{refers_to}"
        reader = Client(reply.root, signed, tmp_path / "cache")
        found = reader.custom("id2d_fp32/2/onnx")
        assert found is not None
        assert (found["trial"], found["order"]) == (False, 2)


async def test_killed_hub_comes_back_and_so_do_its_devices(gateway: Gateway):
    async with there(gateway, "cam-7h") as device:
        await holds(lambda: answered(gateway))
        (pid,) = gateway.pids["hub"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not device.up.is_set())
        await until(device.up.is_set, 60)
        await holds(lambda: answered(gateway))
        assert device.given >= 2


async def test_killed_control_loses_no_device_and_no_request(gateway: Gateway):
    async with there(gateway, "cam-7c") as device:
        await holds(lambda: answered(gateway))
        (pid,) = gateway.pids["control"]
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(answered, gateway)
        await seen(gateway, "cam-7c")
        assert device.connects == 1
        names = {view["name"] for view in await asyncio.to_thread(gateway.get, "/api/v1/devices")}
        assert "cam-7c" in names
        # The one that came back writes too, and the hub hears of it.
        await asyncio.to_thread(cli, gateway, "revoke", "cam-7c")
        await until(lambda: any(status == "PERMISSION_DENIED" for status, _ in device.ends))


async def test_killed_data_plane_finds_the_devices_again(gateway: Gateway):
    async with there(gateway, "cam-7d") as device:
        await holds(lambda: answered(gateway))
        os.kill(gateway.pids["data_plane"][0], signal.SIGKILL)
        await holds(lambda: answered(gateway))
        assert device.connects == 1


def test_second_gateway_on_the_same_state_and_a_taken_port_are_told_before_ray_starts(
    gateway: Gateway, tmp_path: Path
):
    (with_artifact(tmp_path) / "tidegate.yaml").write_text(CONFIG)
    free = [part for flag in ("--http", "--grpc", "--metrics") for part in (flag, "127.0.0.1:0")]
    assert gateway.edge is not None
    cases = (
        (["--edge", gateway.edge], f"edge: cannot listen on {gateway.edge}"),
        (
            ["--edge", "127.0.0.1:0", "--state-dir", str(gateway.log.parent / "state")],
            "another gateway runs on",
        ),
    )
    for flags, word in cases:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", "up", "--json", *free, *flags],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert word in done.stderr
        assert done.stderr.count("\n") == 1


def test_edge_beyond_loopback_is_refused_with_the_reason(tmp_path: Path):
    (with_artifact(tmp_path) / "tidegate.yaml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", "up", "--edge", "0.0.0.0:8082"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "mutual TLS" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [Address.parse(a).is_loopback for a in ("127.0.0.1:1", "localhost:1", "[::1]:1", "[::]:1")] == [
        True,
        True,
        True,
        False,
    ]


def test_stop_leaves_neither_process_nor_socket(gateway: Gateway):
    """The last test of this gateway."""
    inner = inner_socket(gateway)
    tree = psutil.Process(gateway.process.pid).children(recursive=True)
    assert gateway.stop() == 0, gateway.log.read_text()[-2000:]
    assert not inner.parent.exists()
    _, alive = psutil.wait_procs(tree, timeout=20)
    assert not alive, [p.cmdline() for p in alive]
