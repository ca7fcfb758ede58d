"""schemathesis over the operator API's own description. Only with TIDEGATE_SERVERS=1: see
tests/support/environments.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import schemathesis
from tests.support.environments import WANTED, EnvironmentMissing, python_of, wanted
from tests.support.gateway import Gateway, running_gateway

pytestmark = [
    pytest.mark.skipif(not wanted(), reason=f"makes an environment: set {WANTED}=1"),
    pytest.mark.timeout(schemathesis.LONGEST_S),
]
CONFIG = """
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints:
  - {name: cams, kind: edge, select: {site: [plant-7]}}
models:
  - {name: digits, variants: [{endpoint: cams, artifact: any.tflite}]}
privacy: {default: plant, classes: {plant: {allow: [{tier: [device, site]}]}}}
policies: [{name: default, match: {}, weights: {latency: 1}}]
"""
CHECKS = (
    "told_in_a_sentence",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    try:
        python_of("schemathesis")
    except EnvironmentMissing as missing:
        pytest.skip(f"schemathesis cannot be had here: {missing}")
    (tmp_path / "any.tflite").write_bytes(b"not looked into")
    with running_gateway(CONFIG, tmp_path) as found:
        yield found


def test_the_operator_api_does_as_it_says(gateway: Gateway):
    token = httpx.post(f"http://{gateway.http}/api/v1/devices/tokens", json={"site": "plant-7"})
    assert token.status_code == 200
    status, said = schemathesis.faults(
        f"http://{gateway.http}/api/v1/openapi.json",
        f"http://{gateway.http}",
        checks=CHECKS,
        names={"model": ["digits"], "version": ["1"], "name": ["cam-1"]},
        examples=int(os.environ.get("TIDEGATE_EXAMPLES", "20")),
    )
    assert status == 0, said[-6000:]
    assert gateway.get("/api/v1/models")[0]["name"] == "digits"
