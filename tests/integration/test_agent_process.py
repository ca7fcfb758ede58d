"""`tidegate-agent` as a process: with real models and the gateway's hub, and its commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2

from edge_agent.cli import execute
from edge_agent.state import DeviceState
from edgewire.v1 import inside_pb2, inside_pb2_grpc
from gateway.demo.digits import sample, train_base
from gateway.demo.tflite import write_golden
from tests.support.agent import TINY_MODELS, AgentProcess, running_agent
from tests.support.hub import ListedRoll, edge, hub_config, running_hub
from tests.support.hub_double import HubDouble
from tests.support.processes import output_of, source_env
from tests.support.released import shop_of
from tests.support.waiting import until

pb: Any = service_pb2
Call = Callable[..., tuple[int, str, str]]
AWAY = "127.0.0.1:1"
GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def infer_digits(address: str, pixels: np.ndarray) -> np.ndarray:
    client = http_client.InferenceServerClient(address)
    try:
        given = http_client.InferInput("pixels", list(pixels.shape), "FP32")
        given.set_data_from_numpy(pixels)
        found = client.infer("digits", [given]).as_numpy("probabilities")
        assert found is not None
        return found
    finally:
        client.close()


def is_ready(address: str, model: str) -> bool:
    client = http_client.InferenceServerClient(address)
    try:
        return client.is_model_ready(model)
    finally:
        client.close()


async def test_from_a_token_to_answers_and_on_without_a_hub(tmp_path: Path):
    model = train_base()
    pixels, _ = sample(2)
    expected = model.predict(pixels)
    write_golden(tmp_path / "golden.npz", [({"pixels": pixels}, {"probabilities": expected})], 1e-4)
    (tmp_path / "golden.npz").rename(tmp_path / "digits.tflite.golden.npz")
    (tmp_path / "digits.tflite").write_bytes(model.tflite())
    artifact = str(tmp_path / "digits.tflite")
    config = hub_config(
        [edge()],
        [{"name": "digits", "variants": [{"endpoint": "cameras", "artifact": artifact}]}],
    )
    state = tmp_path / "state"
    yaml = tmp_path / "agent.yaml"
    yaml.write_text("device: cam-7a\n")
    roll = ListedRoll(tokens={"secret": "plant-7"})
    request = pb.ModelInferRequest(model_name="digits", id="7")
    request.inputs.add(name="pixels", datatype="FP32", shape=[2, 64])
    request.raw_input_contents.append(pixels.astype("<f4").tobytes())
    asked = inside_pb2.ForwardRequest(
        device="cam-7a",
        request=request.SerializeToString(),
        timeout_ms=10_000,
        allowed="tier=device;device=cam-7a",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    async with shop_of(config, tmp_path / "gateway") as shop, running_hub(roll, config, shop.blobs) as hub:
        roll.given = shop.orders()
        await hub.server.roll_changed()
        starting = running_agent(state, hub.devices, "--token", "secret", "--config", str(yaml))
        with ExitStack() as stack:
            agent = await asyncio.to_thread(stack.enter_context, starting)
            assert (agent.device, agent.site) == ("cam-7a", "plant-7")
            await until(lambda: _ready(agent), 60)
            np.testing.assert_allclose(infer_digits(agent.http, pixels), expected, atol=1e-3)
            async with grpc.aio.insecure_channel(hub.inside) as channel:
                reply = await inside_pb2_grpc.HubInsideStub(channel).Forward(asked)
            assert (reply.reason, reply.message) == ("", "")
            response = pb.ModelInferResponse.FromString(reply.response)
            assert (response.id, response.model_name) == ("7", "digits")
            found = np.frombuffer(response.raw_output_contents[0], "<f4").reshape(2, 10)
            np.testing.assert_allclose(found, expected, atol=1e-3)
            assert [span.name for span in reply.spans][:1] == ["tidegate.agent.infer"]
            assert await asyncio.to_thread(agent.stop) == 0
    with running_agent(state, AWAY) as agent:
        assert (agent.device, agent.site) == ("cam-7a", "plant-7")
        assert is_ready(agent.http, "digits")
        np.testing.assert_allclose(infer_digits(agent.http, pixels), expected, atol=1e-3)
        assert agent.stop() == 0


def _ready(agent: AgentProcess) -> bool:
    try:
        return is_ready(agent.http, "digits")
    except http_client.InferenceServerException:
        return False


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """Not enrolled, no hub in reach."""
    with running_agent(tmp_path_factory.mktemp("device") / "state", AWAY, program=TINY_MODELS) as found:
        yield found


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """One command line in this process: its status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = execute(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A file with a request for `identity`."""
    path = tmp_path / "request.json"
    path.write_text(json.dumps(GOOD))
    return str(path)


def test_it_serves_before_it_has_enrolled(agent: AgentProcess, call: Call, good: str):
    assert (agent.device, agent.site) == (None, None)
    assert agent.pid == agent.process.pid
    code, out, err = call("infer", "identity", "--input", good, "--http", agent.http)
    assert (code, err) == (0, "")
    assert json.loads(out)["outputs"][0]["data"] == [1, 2, 3, 4]
    assert "not enrolled, so no gateway uses this device" in agent.log.read_text()


def test_infer_tells_what_is_wrong(agent: AgentProcess, tmp_path: Path, call: Call, good: str):
    code, _, err = call("infer", "nobody", "--input", good, "--http", agent.http)
    assert (code, err) == (2, "tidegate-agent: Request for unknown model: 'nobody' is not found\n")
    code, _, err = call("infer", "fails", "--input", good, "--http", agent.http)
    assert (code, err) == (1, "tidegate-agent: model 'fails' is not active on this device\n")
    code, _, err = call("infer", "identity", "--input", str(tmp_path / "none"), "--http", agent.http)
    assert (code, err) == (2, "tidegate-agent: --input cannot be read: No such file or directory\n")
    code, _, err = call("infer", "identity", "--input", good, "--http", AWAY)
    assert code == 1
    assert err.startswith(f"tidegate-agent: no agent answers at {AWAY}: start one with tidegate-agent run")


def test_a_second_agent_does_not_start_on_the_folder(agent: AgentProcess, call: Call):
    state = agent.log.with_name("state")
    code, _, err = call(
        "run", "--hub", AWAY, "--state", str(state), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"
    )
    assert code == 1
    assert "another agent runs on this state folder" in err


def test_an_address_in_use_is_told(agent: AgentProcess, tmp_path: Path, call: Call):
    code, _, err = call("run", "--hub", AWAY, "--state", str(tmp_path), "--http", agent.http)
    assert code == 1
    assert err.splitlines()[-1].startswith(f"tidegate-agent: HTTP: cannot listen on {agent.http}")


def test_doctor_says_what_is_right_and_wrong(agent: AgentProcess, call: Call):
    state = agent.log.with_name("state")
    code, out, _ = call("doctor", "--state", str(state), "--hub", AWAY, "--json")
    assert code == 1
    found = {check["name"]: check["ok"] for check in json.loads(out)}
    assert found == {
        "runtime": True,
        "state": True,
        "credential": True,
        "enrolment": False,
        "disk": True,
        "hub": False,
        "delegate xnnpack": True,
        "delegate builtin": True,
    }


def test_probe_lists_the_delegates():
    found = json.loads(output_of([sys.executable, "-m", "edge_agent.cli", "probe", "--json"]))
    assert [(entry["kind"], entry["available"]) for entry in found] == [("xnnpack", True), ("builtin", True)]


BAD_LINES = [
    (["--hub", "10.0.0.1:8082"], "--hub '10.0.0.1:8082' is beyond loopback"),
    (["--hub", "gateway:8082"], "--hub 'gateway:8082' is beyond loopback"),
    (["--hub", "127.0.0.1"], "--hub '127.0.0.1' is not an address"),
    (["--hub", "127.0.0.1:0"], "--hub needs the hub's port"),
    (["--hub", AWAY, "--http", "0.0.0.0:8090"], "--http '0.0.0.0:8090' is beyond loopback"),
    (["--hub", AWAY, "--grpc", "[::]:8091"], "--grpc '[::]:8091' is beyond loopback"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_LINES, ids=lambda value: str(value)[:30])
def test_wrong_addresses_are_refused(flags: list[str], message: str, tmp_path: Path, call: Call):
    code, _, err = call("run", "--state", str(tmp_path), *flags)
    assert code == 2
    assert err.startswith(f"tidegate-agent: {message}")
    assert list(tmp_path.iterdir()) == []


def test_other_wrong_usage(tmp_path: Path, call: Call):
    (tmp_path / "agent.yaml").write_text("threads: 1\nthread: 2\n")
    code, _, err = call(
        "run", "--hub", AWAY, "--state", str(tmp_path / "s"), "--config", str(tmp_path / "agent.yaml")
    )
    assert (code, err.splitlines()) == (
        2,
        [
            f"{tmp_path / 'agent.yaml'}:2: unknown key 'thread': the file has device, threads, delegates, limits"
        ],
    )
    code, _, err = call("run", "--hub", AWAY)
    assert code == 2
    assert err == "tidegate-agent run: Missing option '--state'; try 'tidegate-agent run --help'\n"


async def test_a_refused_token_ends_the_start(tmp_path: Path):
    double = HubDouble()
    hub = await double.start()
    state = tmp_path / "s"
    # Not on the command line, which every user of the machine can read.
    command = ["run", "--hub", hub, "--state", str(state)]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    environment = {**source_env(), "TIDEGATE_ENROLMENT_TOKEN": "used"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *TINY_MODELS, *command, env=environment, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    await double.stop()
    assert (process.returncode, out) == (1, b"")
    told = err.decode().splitlines()[-1]
    assert told == "tidegate-agent: the hub refused to enrol this device: the token is used up"
    with DeviceState(state) as found:
        assert found.enrolment is None


def test_sigterm_finishes_what_runs(tmp_path: Path, call: Call, good: str):
    with running_agent(tmp_path / "s", AWAY, program=TINY_MODELS) as agent:
        host, _, port = agent.http.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            body = json.dumps(GOOD).encode()
            head = f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: d\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            # The answer to a second request says that the first has been taken up.
            assert call("infer", "identity", "--input", good, "--http", agent.http)[0] == 0
            agent.process.send_signal(signal.SIGTERM)
            connection.settimeout(30)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert agent.process.wait(30) == 0


def test_the_plain_line(tmp_path: Path):
    command = [sys.executable, *TINY_MODELS, "run", "--hub", AWAY, "--state", str(tmp_path / "s")]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=source_env()
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


IMPORTS = """
import sys
from edge_agent import cli
if sys.argv[1] == "help":
    cli.execute(["--help"])
else:
    import edge_agent.agent, edge_agent.checks, edge_agent.runtime, edge_agent.update, edge_agent.delegates
print("", *sorted({name.partition(".")[0] for name in sys.modules}), sep="\\n")
"""


@pytest.mark.parametrize("what", ["help", "run"])
def test_neither_ray_nor_fastapi_nor_the_gateway_is_imported(what: str):
    found = set(output_of([sys.executable, "-c", IMPORTS, what]).splitlines())
    assert "edge_agent" in found
    assert found.isdisjoint({"ray", "fastapi", "starlette", "pydantic", "gateway", "sqlalchemy", "httptools"})
    if what == "help":
        assert found.isdisjoint({"grpc", "numpy", "uvicorn", "tflite_runtime", "tritonclient"})


def test_nothing_is_printed_to_a_closed_pipe():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent.cli", "probe"],
        env=source_env(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
