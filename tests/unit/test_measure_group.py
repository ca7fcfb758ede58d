"""Measuring a group of devices, and the measurements that a data plane makes of itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from edgewire.allowed import AllowedRule, AllowedSet
from gateway.core.decision import VariantKey
from gateway.core.errors import AttemptError
from gateway.core.fleet import Device, Group, group_of
from gateway.core.place import Place, Tier
from gateway.core.ports import Permit
from gateway.jobs.spread import Spread
from gateway.serve.measuring import Measurements
from gateway.store.profiles import ProfileStore
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.configs import config_from
from tests.support.waiting import until

ANYWHERE = AllowedSet((AllowedRule(tiers=frozenset(Tier)),))
PERMIT = Permit(ANYWHERE, Place(Tier.DEVICE))
KEY = VariantKey("cameras", "digits", "")


class Devices:
    """An edge endpoint whose devices each take `took_s`; notes where requests went."""

    def __init__(self, took_s: float = 0.0) -> None:
        self.took_s = took_s
        self.sent: Counter[str] = Counter()
        self.places: set[Place] = set()
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    async def infer(
        self, body: bytes, metadata: Sequence[tuple[str, str]], timeout_s: float, permit: Permit
    ) -> bytes:
        self.sent[permit.device] += 1
        self.places.add(permit.place)
        self._now[permit.device] += 1
        self.most[permit.device] = max(self.most[permit.device], self._now[permit.device])
        try:
            await asyncio.sleep(self.took_s)
        finally:
            self._now[permit.device] -= 1
        return b"answer"

    async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
        message = service_pb2.ModelMetadataResponse(name=model)
        message.inputs.add(name="X", datatype="FP32", shape=[-1, 64])
        return message.SerializeToString()


def group(*names: str, ready: bool = True) -> Group:
    models = frozenset({("digits", "1")}) if ready else frozenset()
    places = {name: Place(Tier.DEVICE, site="plant-7", device=name) for name in names}
    return group_of(Device(name, places[name], connected=True, models=models) for name in names)


async def test_requests_go_to_the_device_with_fewest_and_to_its_own_place():
    devices = Devices(0.02)
    spread = Spread(devices, "cameras", ("digits", ""), lambda: group("a", "b", "c"))
    await asyncio.gather(*(spread.infer(b"", (), 1.0, PERMIT) for _ in range(9)))
    assert devices.sent == devices.most == {"a": 3, "b": 3, "c": 3}
    assert devices.places == {Place(Tier.DEVICE, site="plant-7", device=name) for name in "abc"}


async def test_one_after_the_other_they_take_turns():
    devices = Devices()
    spread = Spread(devices, "cameras", ("digits", ""), lambda: group("a", "b"))
    for _ in range(6):
        await spread.infer(b"", (), 1.0, PERMIT)
    assert devices.sent == {"a": 3, "b": 3}


async def test_no_ready_device_is_a_failure_of_the_place():
    spread = Spread(Devices(), "cameras", ("digits", ""), lambda: group("a", ready=False))
    with pytest.raises(AttemptError, match="no device has the model ready") as caught:
        await spread.infer(b"", (), 1.0, PERMIT)
    assert not caught.value.sent


def measurements(folder: Path, devices: Devices, *names: str) -> Measurements:
    config = config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": {"tier": "site", "site": "plant-7"}},
            "endpoints": [
                {
                    "name": "cameras",
                    "kind": "triton",
                    "location": {"tier": "cloud"},
                }
            ],
            "models": [{"name": "digits", "variants": [{"endpoint": "cameras"}]}],
            "privacy": {
                "default": "any",
                "classes": {"any": {"allow": [{"tier": ["device", "site", "cloud"]}]}},
            },
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
        }
    )
    return Measurements(config, {"cameras": devices}, lambda _: group(*names), ProfileStore(folder))  # pyright: ignore


async def test_only_one_runs_and_the_end_of_the_gateway_ends_it(tmp_path: Path):
    measuring = measurements(tmp_path, Devices(0.05))
    first = measuring.begin(KEY)
    assert (first["state"], first["error"]) == ("running", None)
    with pytest.raises(OipError) as caught:
        measuring.begin(KEY)
    assert caught.value.reason is Reason.OVERLOADED
    await until(lambda: measuring.view(first["id"])["share"] > 0)
    await measuring.close()
    view = measuring.view(first["id"])
    assert (view["state"], view["error"], view["profile"]) == ("failed", "the gateway is stopping", None)
    assert ProfileStore(tmp_path).load() == ()


async def test_faults_end_in_one_sentence_without_a_path(tmp_path: Path):
    class Gone(Devices):
        async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
            raise OipError(Reason.UNAVAILABLE, "cameras: away")

    class Odd(Devices):
        async def model_metadata(self, model: str, version: str, timeout_s: float) -> bytes:
            raise KeyError("secret inside")

    for devices, word in ((Gone(), "cameras: away"), (Odd(), "KeyError")):
        measuring = measurements(tmp_path, devices)
        number = measuring.begin(KEY)["id"]
        await until(lambda number=number, m=measuring: m.view(number)["state"] == "failed")
        assert word in measuring.view(number)["error"]
        assert "secret" not in measuring.view(number)["error"]
    with pytest.raises(OipError) as caught:
        measuring.view("nope")
    assert caught.value.reason is Reason.NOT_FOUND
