"""Artifacts that are wrong, with a right digest: the agent lives, the old model serves, the reason is said.

In full, with figures: TIDEGATE_CORRUPT=all python -m pytest -s tests/integration/test_corrupt_artifacts.py
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edge_agent.runtime import RuntimeSettings
from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from gateway.demo.artifacts import wakeword
from tests.support import corrupt
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, output, request, response
from tests.support.waiting import until

ALL = os.environ.get("TIDEGATE_CORRUPT") == "all"
FEW = (
    "truncated to 1000",
    "not a model",
    "an operator of the future",
    "a version of the future",
    "a negative output",
    "a cycle of two nodes",
    "an input too large to be",
    "a convolution of stride 0",
    "more memory than a worker has",
    "no finite answer to zeros",
    "golden vectors with other answers",
    "golden vectors that unpack to 300 MB",
    "wakeword with stretch 3 of 30 bent",
)
ENDS = (edge_pb2.ModelState.ACTIVE, edge_pb2.ModelState.FAILED)
PIXELS = corrupt.PIXELS


@pytest.mark.timeout(900)
async def test_each_is_refused_with_a_reason_while_the_old_model_serves(tmp_path: Path):
    hub = Hub()
    settings = RuntimeSettings(memory_mb=1024, trial_timeout_s=20)
    device = DeviceModels(tmp_path / "models", settings)
    word = wakeword(tmp_path / "word").read_bytes()
    cases = list(corrupt.corrupt_artifacts(tmp_path, word))
    chosen = cases if ALL else [case for case in cases if case.name in FEW]
    assert len(chosen) >= (100 if ALL else len(FEW))
    wanted = models.digits_model().predict(PIXELS)
    reasons: Counter[str] = Counter()
    harmless: list[str] = []
    slowest = 0.0
    await device.start()
    try:
        hub.wish(device, hub.desired("digits", models.digits_file(), "1"))
        await until(lambda: device.states()[0].state == edge_pb2.ModelState.ACTIVE, 30)
        good = device.states()[0].active_digest
        for number, case in enumerate(chosen):
            began = time.monotonic()
            bad = hub.desired("digits", case.data, f"c{number}", case.golden)
            hub.wish(device, bad)
            await until(lambda: device.states()[0].state in ENDS, 60)
            slowest = max(slowest, time.monotonic() - began)
            (found,) = device.states()
            if ALL and found.state == edge_pb2.ModelState.ACTIVE:
                # Bent where nothing depends on it: its own golden vectors or a finite answer passed.
                harmless.append(case.name)
                hub.wish(device, hub.desired("digits", models.digits_file(), "1"))
                await until(lambda: device.states()[0].active_version == "1", 30)
                continue
            assert found.state == edge_pb2.ModelState.FAILED, case.name
            assert found.digest == bad.digest
            assert re.fullmatch(
                r"Model 'digits' version c\d+ does not work on this device: [^\n]+\.", found.reason
            )
            assert str(tmp_path) not in found.reason
            assert (found.active_digest, found.active_version) == (good, "1"), case.name
            answer = await device.infer(request("digits", pixels=PIXELS), 20)
            assert response(answer).model_version == "1"
            np.testing.assert_allclose(output(answer), wanted, atol=1e-5)
            reasons[found.reason.partition("this device: ")[2]] += 1
        assert len(harmless) <= len(cases) - 100
    finally:
        await device.close()
    if ALL:
        crashes = sum(n for reason, n in reasons.items() if "SIG" in reason)
        print(
            f"\n{sum(reasons.values())} refused, {crashes} of them by a worker's end, slowest {slowest:.1f} s"
        )
        print(f"harmless: {harmless}")
        for reason, count in reasons.most_common():
            print(f"{count:4} {reason}")
