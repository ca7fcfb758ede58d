"""The agent where nothing but its extra is installed: the wheel, and what the wheel asks for."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.hub import ListedRoll, edge, hub_config, running_hub
from tests.support.processes import ROOT
from tests.support.released import shop_of
from tests.support.tflite_models import difference
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

FORBIDDEN = {"ray", "fastapi", "starlette", "sqlalchemy", "openvino", "onnxruntime", "httpx"}
MOST_MB = 200
"""On disk, bytecode and pip left out."""
Run = Callable[..., subprocess.CompletedProcess[str]]


def wanted_by(wheel: Path, extra: str) -> set[str]:
    """Every distribution that `pip install 'tidegate[EXTRA]'` brings, tidegate itself left out."""
    with zipfile.ZipFile(wheel) as packed:
        name = next(entry for entry in packed.namelist() if entry.endswith(".dist-info/METADATA"))
        lines = packed.read(name).decode().splitlines()
    told = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    found: set[str] = set()
    open_ends = [(Requirement(text), {extra}) for text in told]
    seen: set[tuple[str, str]] = set()
    while open_ends:
        requirement, extras = open_ends.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": one}) for one in extras | {""}):
            continue
        key = (canonicalize_name(requirement.name), ",".join(sorted(requirement.extras)))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        further = distribution(key[0]).requires or []
        open_ends += [(Requirement(text), set(requirement.extras)) for text in further]
    return found


def lay_out(names: set[str], site: Path) -> int:
    """Link the installed files of these distributions into `site`; their size in bytes."""
    size = 0
    for name in names:
        for file in set(distribution(name).files or []):
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.is_file():
                continue
            target = site.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)
            size += 0 if file.suffix == ".pyc" else source.stat().st_size
    return size


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def device(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the agent extra alone. Tests need no package index: the files
    are those of this environment. Of the wheel's packages the gateway is left out, so that whoever
    imports it is found out."""
    folder = tmp_path_factory.mktemp("device")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    size = lay_out(wanted_by(wheel, "agent"), site)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    shutil.rmtree(site / "gateway")
    assert size < MOST_MB * 1e6
    return folder / "bin" / "python"


@pytest.fixture
def agent(device: Path) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            alone(device, "-m", "edge_agent.cli", *arguments), capture_output=True, text=True, timeout=60
        )

    return run


def alone(device: Path, *arguments: str) -> list[str]:
    """A command line in that environment and no other: neither this source tree nor variables lead out."""
    return ["env", "-C", str(device.parent), "-u", "PYTHONPATH", "-u", "PYTHONHOME", str(device), *arguments]


def test_the_extra_brings_nothing_of_the_gateway(wheel: Path, device: Path):
    found = wanted_by(wheel, "agent")
    assert {"tflite-runtime", "uvicorn", "grpcio", "ruamel-yaml", "typer"} <= found
    assert not found & FORBIDDEN
    assert wanted_by(wheel, "gateway") >= {"ray", "fastapi", "sqlalchemy", "httpx"}
    look = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    names = ["gateway", *sorted(FORBIDDEN), "psutil"]
    done = subprocess.run(alone(device, "-c", look, *names), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['psutil']\n", "")


def test_probe_and_doctor(agent: Run, tmp_path: Path):
    probed = agent("probe", "--json")
    assert (probed.returncode, probed.stderr) == (0, "")
    assert [(d["delegate"], d["available"], d["nodes_taken"]) for d in json.loads(probed.stdout)] == [
        ("xnnpack", True, 6),
        ("builtin", True, 0),
    ]
    looked = agent("doctor", "--json", "--state", str(tmp_path))
    assert (looked.returncode, looked.stderr) == (1, "")
    wrong = [check["name"] for check in json.loads(looked.stdout) if not check["ok"]]
    assert wrong == ["enrolment"]


async def test_from_a_token_to_answers(device: Path, agent: Run, tmp_path: Path):
    artifact = tmp_path / "difference.tflite"
    artifact.write_bytes(difference())
    config = hub_config(
        [edge()],
        [{"name": "difference", "variants": [{"endpoint": "cameras", "artifact": str(artifact)}]}],
    )
    tensors = [
        {"name": n, "datatype": "FP32", "shape": [2], "data": d} for n, d in (("a", [5, 7]), ("b", [2, 3]))
    ]
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"inputs": tensors}))
    wishes = tmp_path / "agent.yaml"
    wishes.write_text("device: cam-7a\n")
    command = alone(device, "-m", "edge_agent.cli", "run", "--json", "--token", "secret")
    command += ["--state", str(tmp_path / "state"), "--config", str(wishes)]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    roll = ListedRoll(tokens={"secret": "plant-7"})
    async with shop_of(config, tmp_path / "gateway") as shop, running_hub(roll, config, shop.blobs) as hub:
        roll.given = shop.orders()
        await hub.server.roll_changed()
        process = await asyncio.create_subprocess_exec(
            *command, "--hub", hub.devices, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            ready = json.loads(await process.stdout.readline())
            assert (ready["device"], ready["site"]) == ("cam-7a", "plant-7")
            served = partial(answers, ready["http"])
            await until(served, 60)
            asked = await asyncio.to_thread(
                agent, "infer", "difference", "--input", str(request), "--http", ready["http"]
            )
            assert (asked.returncode, asked.stderr) == (0, "")
            assert json.loads(asked.stdout)["outputs"][0]["data"] == [3, 4]
            looked = await asyncio.to_thread(
                agent, "doctor", "--state", str(tmp_path / "state"), "--hub", hub.devices
            )
            assert (looked.returncode, looked.stderr) == (0, ""), looked.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, b"Traceback" in log) == (0, False), log


def answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/models/difference/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()
