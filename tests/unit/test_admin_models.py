"""Releases through the operator API and the command line, over a real store."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from edgewire.targets import target_name
from gateway.admin.app import operator_app
from gateway.admin.plane import ReleaseQuery
from gateway.cli.main import run
from gateway.control.fits import Fitting
from gateway.core.fleet import DeviceReport
from gateway.core.place import Place, Tier
from gateway.serve.models import Models
from gateway.store.blobs import blob_of
from tests.support.hub import edge, hub_config
from tests.support.released import Client, Shop, shop_of
from tests.support.tflite_models import difference, golden_file, logarithm

RUNTIME = {"runtime": "tflite-runtime 2.14.0", "memory_mb": "4096"}


def device(name: str, site: str = "plant-7", **facts: str) -> DeviceReport:
    return DeviceReport(name, Place(Tier.DEVICE, site=site, device=name), {}, True, {**RUNTIME, **facts})


class Control:
    """As much of control as models need, over a real store."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def models_view(self) -> list[dict[str, Any]]:
        return self._models.with_releases([{"name": "digits"}, {"name": "a/b"}])

    async def upload_artifact(self, content: bytes) -> dict[str, Any]:
        return await self._models.upload(content)

    async def push_release(self, model: str, query: ReleaseQuery) -> dict[str, Any]:
        return await self._models.push(model, query)

    async def compat_view(self, model: str | None, version: str | None) -> list[dict[str, Any]]:
        return await self._models.compat(model, version)


class Api:
    """A shop with its operator API. `devices` are those that there are."""

    def __init__(self, shop: Shop, config: Any, folder: Path) -> None:
        self.shop, self.folder = shop, folder
        self.devices: list[DeviceReport] = []
        fitting = Fitting(config, shop.blobs)

        async def devices() -> Sequence[DeviceReport]:
            await fitting.learn(shop.releases.snapshot()["releases"].values())
            return self.devices

        control: Any = Control(Models(config, shop.releases, devices, fitting.fit))
        self.app = operator_app(control, "0")

    async def call(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            return await client.request(method, f"/api/v1{path}", json=body, content=raw)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "a.tflite").write_bytes(difference())
    variants = [{"endpoint": "cameras", "artifact": str(tmp_path / "a.tflite")}]
    config = hub_config(
        [edge("cameras", site="plant-7")],
        [{"name": name, "variants": variants} for name in ("digits", "a/b")],
    )
    async with shop_of(config, tmp_path / "state") as shop:
        yield Api(shop, config, tmp_path)


def vectors(folder: Path) -> bytes:
    a = np.array([1, 2], np.float32)
    return golden_file(folder, [({"x": a}, {"y": np.log(a)})], 0.1)


async def test_a_file_is_uploaded_raw_and_released_by_its_digest(api: Api):
    golden = vectors(api.folder)
    content = (await api.call("PUT", "/artifacts", raw=logarithm())).json()
    assert content == {"digest": blob_of(logarithm()).digest, "size": len(logarithm())}
    beside = (await api.call("PUT", "/artifacts", raw=golden)).json()
    files = {"tflite": {"format": "tflite", "digest": content["digest"], "golden": beside["digest"]}}
    made = await api.call("POST", "/models/a%2Fb/releases", {"files": files})
    assert made.json() == {
        "version": "2", "stage": "candidate", "order": 2, "standing": False, "source": "push",
        "places": None, "metrics": {},
        "files": {"tflite": {"format": "tflite", **content, "golden": beside}},
    }  # fmt: skip
    _, view = (await api.call("GET", "/models")).json()
    assert (view["standing"], [r["version"] for r in view["releases"]]) == ("1", ["1", "2"])
    seen = Client(api.shop.releases.root(), api.shop.metadata, api.folder / "device")
    assert seen.custom(target_name("a/b", "2", "tflite")) is not None
    again = await api.call("POST", "/models/a%2Fb/releases", {"files": files, "version": "2"})
    assert again.json() == made.json()
    files["tflite"]["digest"] = blob_of(difference()).digest
    other = await api.call("POST", "/models/a%2Fb/releases", {"files": files, "version": "2"})
    assert other.status_code == 409
    assert "a version never changes" in other.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/models/letters/releases", {"files": {"onnx": {"format": "onnx", "digest": "?"}}}, 404, "no artifact"),
        ("/models/digits/releases", {"files": {}}, 400, "files"),
        ("/models/digits/releases", {}, 400, "files"),
        ("/models/digits/releases", {"files": {"onnx": {"format": "onnx"}}}, 400, "files.onnx.digest"),
        ("/models/digits/releases", {"files": {"onnx": {"digest": "x", "format": 1}}}, 400, "files.onnx.format"),
        ("/models/digits/releases", {"files": {"x": {"format": "onnx", "digest": "HERE"}}}, 400, "'x' is neither"),
        ("/models/digits/releases", {"files": {"onnx": {"format": "pt", "digest": "HERE"}}}, 400, "is no format"),
        ("/models/letters/releases", {"files": {"onnx": {"format": "onnx", "digest": "HERE"}}}, 404, "no model"),
        (
            "/models/digits/releases",
            {"files": {"tflite": {"format": "tflite", "digest": "HERE", "golden": "HERE"}}},
            400,
            "the file is no TFLite model",
        ),
        (
            "/models/digits/releases",
            {"files": {"tflite": {"format": "tflite", "digest": "HERE"}}},
            400,
            "has no golden vectors",
        ),
        ("/models/digits/releases", {"files": {"onnx": {"format": "onnx", "digest": "HERE"}}, "version": "0"}, 400, "version"),
    ],
)  # fmt: skip
async def test_a_wrong_push_is_one_sentence(api: Api, path: str, body: Any, status: int, says: str):
    stored = (await api.call("PUT", "/artifacts", raw=b"something")).json()["digest"]
    answer = await api.call("POST", path, json.loads(json.dumps(body).replace("HERE", stored)))
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]


async def test_an_empty_upload_is_refused(api: Api):
    answer = await api.call("PUT", "/artifacts", raw=b"")
    assert (answer.status_code, answer.json()) == (400, {"error": "the file is empty"})


async def test_devices_are_held_against_what_stands_or_the_version_asked_for(api: Api):
    api.devices = [
        device("cam-1"),
        device("cam-2", memory_mb="0"),
        device("cam-3", runtime="litert 9.9"),
        device("door-1", "plant-9"),
    ]
    found = (await api.call("GET", "/compat?model=digits")).json()
    assert [(row["device"], row["version"], row["ok"]) for row in found] == [
        ("cam-1", "1", True),
        ("cam-2", "1", False),
        ("cam-3", "1", False),
    ]
    assert [row["missing"] for row in found] == [
        None,
        "memory: the model needs 1 MiB, and the device has 0 MiB for it",
        "what the runtime 'litert 9.9' can do is not known",
    ]
    assert {row["model"] for row in (await api.call("GET", "/compat")).json()} == {"digits", "a/b"}
    for path, status in (("?model=x", 404), ("?model=digits&version=7", 404), ("?version=1", 400)):
        assert (await api.call("GET", f"/compat{path}")).status_code == status


@pytest.fixture
async def cli(api: Api, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Callable[..., Any]]:
    """`tidegate models ...` against the API on a port."""
    server = uvicorn.Server(uvicorn.Config(api.app, log_config=None))
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    def work(arguments: tuple[str, ...]) -> int:
        try:
            return run(["models", *arguments, "--url", f"127.0.0.1:{port}"])
        except SystemExit as ended:
            return int(ended.code or 0)

    async def called(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(work, arguments)
        return code, *capsys.readouterr()

    yield called
    server.should_exit = True
    await serving
    listening.close()


async def test_the_command_line_pushes_and_shows(api: Api, cli: Any, tmp_path: Path):
    file, web = tmp_path / "new.tflite", tmp_path / "new.onnx"
    file.write_bytes(logarithm())
    web.write_bytes(b"onnx" * 300_000)
    code, out, err = await cli("push", "digits", str(file), str(web))
    assert (code, out) == (2, "")
    assert (
        err
        == f"tidegate: {file}: it needs golden vectors: put them in new.tflite.golden.npz beside it, or give --golden\n"
    )
    golden = tmp_path / "v.npz"
    golden.write_bytes(vectors(tmp_path))
    code, out, err = await cli("push", "digits", str(file), str(web), "--golden", str(golden))
    assert (code, out, err) == (0, "digits version 2: candidate\n", "")
    assert await api.shop.blobs.get(blob_of(web.read_bytes())) == web.read_bytes()
    golden.rename(tmp_path / "new.tflite.golden.npz")
    code, out, _ = await cli("push", "digits", str(file), "--version", "9", "--json")
    assert (code, json.loads(out)["version"]) == (0, "9")
    (tmp_path / "other.onnx").write_bytes(b"other")
    code, _, err = await cli("push", "digits", str(tmp_path / "other.onnx"), "--version", "9")
    assert (code, "a version never changes" in err) == (1, True)
    for arguments, says in (
        (("push", "digits", str(tmp_path / "absent.onnx")), "no such file"),
        (("push", "digits", str(golden)), "give a .tflite or .onnx file"),
        (("push", "digits", str(web), str(web)), "a release holds one .onnx file"),
        (("push", "digits", str(web), "--golden", str(golden)), "--golden goes with a .tflite"),
        (("push", "nobody", str(web)), "no model 'nobody'"),
        (("show", "nobody"), "the models are a/b, digits"),
    ):
        code, out, err = await cli(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert says in err
    code, out, _ = await cli("list")
    assert code == 0
    assert out.count("candidate") == 2
    code, out, _ = await cli("show", "digits", "--json")
    assert [r["version"] for r in json.loads(out)["releases"]] == ["1", "2", "9"]
    api.devices = [device("cam-1"), device("cam-2", runtime="")]
    code, out, _ = await cli("compat", "digits", "--version", "9")
    assert code == 0
    assert "ok" in out
    assert "which runtime" in out
    code, out, _ = await cli("compat", "digits", "--version", "9", "--json")
    assert [row["ok"] for row in json.loads(out)] == [True, False]


def test_a_bar_is_shown_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch):
    from rich.progress import Progress

    from gateway.cli import models

    starts: list[Progress] = []
    monkeypatch.setattr(Progress, "start", lambda bar: starts.append(bar))
    with models._bar(10) as sent:
        sent(5)
        assert not starts
        monkeypatch.setattr(models, "PATIENCE_S", -1.0)
        sent(6)
        assert len(starts) == 1
