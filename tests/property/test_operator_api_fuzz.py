"""Whatever an operator's script sends of releases, updates and rollouts: an answer, or one sentence that says
what is wrong. Never a fault of the gateway's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.quiet_ray import serve  # isort: skip  # before anything that uses Ray
from ray.serve.exceptions import RayServeException

from gateway.serve.control import Control
from gateway.serve.settings import Address, Listen, ReplicaSettings
from tests.support.tflite_models import difference, golden_file, logarithm
from tests.support.update_world import config

CONFIG = """\
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints:
  - {name: cams, kind: edge}
models:
  - {name: digits, variants: [{endpoint: cams, artifact: FOLDER/a.tflite}]}
  - {name: a/b, variants: [{endpoint: cams, artifact: FOLDER/a.tflite}]}
privacy: {default: plant, classes: {plant: {allow: [{tier: [device, site]}]}}}
policies: [{name: default, match: {}, weights: {latency: 1}}]
updates:
  - model: digits
    samples: {collect: hard, labels: {file: FOLDER/labels.csv}}
    train: {entrypoint: "a.b:c", location: {tier: site, site: plant-7}}
"""
KNOWN = ["digits", "a/b", "cams", "tflite", "onnx", "1", "2", "u1", "u2", "u9", "ro-1", "drift:digits"]
ODD = [
    "", "9" * 19, "9" * 250, "9" * 5000, "０", "１", "01", "-1", "1.0", "\x00", "\ud800", "..", "../x", "%00",
    "0" * 64, "sha256:" + "0" * 64, "x" * 300,
]  # fmt: skip
WORDS = st.one_of(st.sampled_from(KNOWN), st.sampled_from(ODD), st.text(max_size=8))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS)
MEMBERS = ["model", "version", "force", "files", "format", "digest", "golden", "tflite", "onnx", "cams"]
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(MEMBERS), st.text(max_size=4)), inner, max_size=4),
    ),
    max_leaves=6,
)
PARTS = st.one_of(
    WORDS.map(lambda text: quote(text.encode(errors="surrogatepass"), safe="")),
    st.sampled_from(["a/b", "%ff", "%2e%2e", "u1/", "/", "?", "%"]),
)


def shaped(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these members."""
    return st.fixed_dictionaries({}, optional=members)


class Api:
    """Control as the data plane calls it, and two files that are uploaded."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        (folder / "labels.csv").write_bytes(b"\xff\xfe,\n1")
        (folder / "a.tflite").write_bytes(difference())
        text = CONFIG.replace("FOLDER", str(folder))
        self._runner = runner
        anywhere = Address("127.0.0.1", 0)
        listen = Listen(anywhere, anywhere, anywhere)
        self.control = Control(ReplicaSettings(config(text), "r", listen, folder), "t.yaml")
        a = np.array([1, 2], np.float32)
        golden = golden_file(folder, [({"x": a}, {"y": np.log(a)})], 0.1)
        self.files = [self.upload(logarithm()), self.upload(golden)]

    def upload(self, content: bytes) -> str:
        status, body = self.call("PUT", "/artifacts", content)
        assert status == 200, body
        return json.loads(body)["digest"]

    def call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        status, _, answer = self._runner.run(self.control.operator(method, f"/api/v1{path}", body))
        return status, answer


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr("gateway.serve.control.bind_replica_to_loopback", lambda: None)
        # One look around, before anything is pushed: nothing is to be trained here.
        patch.setattr("gateway.serve.upkeep.TICK_S", 3600.0)
        patch.setattr(serve, "get_deployment_handle", _no_serve)
        yield Api(tmp_path_factory.mktemp("state"), runner)


def _no_serve(*_: Any) -> None:
    """As Serve's own says while its controller is replaced."""
    raise RayServeException("There is no Serve instance running on this Ray cluster.")


def calls(files: list[str]) -> st.SearchStrategy[tuple[str, str, Any]]:
    """Method, path, and a body as JSON or raw."""
    digest = st.one_of(st.sampled_from([*files, files[0].upper(), files[0][:20]]), SCALARS)
    file = shaped(
        format=st.one_of(st.sampled_from(["tflite", "onnx"]), SCALARS), digest=digest, golden=digest
    )
    slots = st.dictionaries(st.one_of(st.sampled_from(["tflite", "onnx", "cams"]), WORDS), file, max_size=3)
    release = shaped(files=slots, version=SCALARS)
    methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
    verbs = st.sampled_from(["cancel", "retry", "pause", "resume", "abort", "x"])
    kinds = st.sampled_from(["updates", "rollouts"])
    raw, none = st.binary(max_size=30), st.just(b"")
    return st.one_of(
        st.tuples(
            methods,
            st.sampled_from(["/updates", "/rollouts", "/compat", "/artifacts", "/models"]),
            JSON | raw,
        ),
        st.tuples(st.just("GET"), st.builds("/{}/{}".format, kinds, PARTS), none),
        st.tuples(st.just("GET"), st.builds("/updates/samples/{}".format, PARTS), none),
        st.tuples(st.just("GET"), st.builds("/compat?model={}&version={}".format, PARTS, PARTS), none),
        st.tuples(st.just("POST"), st.builds("/{}/{}/{}".format, kinds, PARTS, verbs), JSON | raw),
        st.tuples(st.just("POST"), st.builds("/models/{}/releases".format, PARTS), release | JSON | raw),
        st.tuples(st.just("POST"), st.just("/models/digits/releases"), release),
        st.tuples(st.just("POST"), st.just("/rollouts"), shaped(model=WORDS, version=WORDS, force=SCALARS)),
        st.tuples(st.just("POST"), st.just("/updates"), shaped(model=WORDS)),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_call_is_answered_or_told_in_a_sentence(api: Api, data: st.DataObject) -> None:
    method, path, body = data.draw(calls(api.files))
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = api.call(method, path, sent)
    # 503: there is no data plane here.
    assert status < 500 or status == 503, (method, path, sent, answer)
    if status >= 400 and method != "HEAD":
        told = json.loads(answer)
        assert set(told) == {"error"}
        assert told["error"].strip()
        assert "\n" not in told["error"]
