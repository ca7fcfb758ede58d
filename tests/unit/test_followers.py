"""Who follows a release, and that they are told until they serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from edgewire.allowed import AllowedRule, of_rules
from edgewire.places import Tier
from gateway.backends.triton import TritonConfig
from gateway.control import followers as control_followers
from gateway.control.followers import Followers
from gateway.core.config import Config, EndpointConfig
from gateway.core.errors import Refusal
from gateway.core.ports import Follower
from gateway.core.release import Blob, Release, ReleaseFile, Stage
from gateway.pipeline import following as following_module
from gateway.pipeline.following import Following
from gateway.policy.followers import Followed, followed
from gateway.policy.signature import changed
from gateway.pool.config import PoolConfig
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from tests.support.configs import config_from
from tests.support.waiting import until

ONNX = ReleaseFile("onnx", Blob("sha256:" + "1" * 64, 4), Blob("sha256:" + "2" * 64, 6))
OWN = ReleaseFile("onnx", Blob("sha256:" + "3" * 64, 5))
TFLITE = ReleaseFile("tflite", Blob("sha256:" + "4" * 64, 6))
CONTENT = {ONNX.blob: b"onnx", OWN.blob: b"own", TFLITE.blob: b"tflite", ONNX.golden: b"golden"}


def config() -> Config:
    site, cloud = {"tier": "site", "site": "plant"}, {"tier": "cloud"}
    return config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": site},
            "endpoints": [
                PoolConfig.model_validate(
                    {"name": "pool", "kind": "pool", "runtime": "onnxruntime", "location": site}
                ),
                PoolConfig.model_validate(
                    {"name": "both", "kind": "pool", "runtime": "openvino", "location": site}
                ),
                TritonConfig.model_validate(
                    {
                        "name": "gpu",
                        "kind": "triton",
                        "url": "grpc://h:1",
                        "repository": "/models",
                        "location": cloud,
                    }
                ),
                TritonConfig.model_validate(
                    {"name": "fixed", "kind": "triton", "url": "grpc://h:2", "location": cloud}
                ),
                EndpointConfig(name="cams", kind="edge"),
            ],
            "models": [
                {
                    "name": "digits",
                    "variants": [
                        {"endpoint": "cams", "artifact": "/d.tflite"},
                        {"endpoint": "pool", "artifact": "/d.onnx"},
                        {"endpoint": "both", "artifact": "/d.tflite"},
                        {"endpoint": "both", "artifact": "/d.onnx", "version": "7"},
                        {"endpoint": "gpu", "model": "digits_gpu"},
                        {"endpoint": "fixed"},
                    ],
                },
                {"name": "other", "variants": [{"endpoint": "gpu", "version": "3"}]},
            ],
            "privacy": {"default": "open", "classes": {"open": {"allow": [{"tier": ["site", "cloud"]}]}}},
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
        }
    )


def release(version: str = "2", *, model: str = "digits", places: str = "", **files: ReleaseFile) -> Release:
    return Release(model, version, files or {"onnx": ONNX, "tflite": TFLITE}, 2, Stage.PASSED, places)


def test_who_follows_and_with_which_file() -> None:
    assert followed(config(), release(onnx=ONNX, tflite=TFLITE, gpu=OWN)) == (
        Followed("pool", "digits", ONNX),
        Followed("both", "digits", TFLITE),
        Followed("gpu", "digits_gpu", OWN),
    )
    assert followed(config(), release(model="other")) == ()
    assert followed(config(), release(model="gone")) == ()


def test_what_a_follower_cannot_run_or_may_not_have() -> None:
    found = {one.endpoint: one.why_not for one in followed(config(), release(tflite=TFLITE))}
    assert found == {
        "pool": "it has no file that pool can run (onnx)",
        "both": "",
        "gpu": "it has no file that gpu can run (onnx)",
    }
    near = of_rules([AllowedRule(frozenset({Tier.SITE, Tier.DEVICE}))]).encode()
    found = {one.endpoint: one for one in followed(config(), release(places=near))}
    assert (found["pool"].why_not, found["pool"].file) == ("", ONNX)
    assert (found["gpu"].why_not, found["gpu"].file) == (
        "it was made from data that may not go to its place (tier cloud)",
        None,
    )
    bent = followed(config(), release(places="tier="))
    assert all(one.why_not and one.file is None for one in bent), "what cannot be read allows nothing"


SPEC = TensorSpec("x", "FP32", (-1, 4))


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (SPEC, None),
        (TensorSpec("x", "FP32", (1, 4)), "its input 'x' is FP32 [1,4], not FP32 [-1,4]"),
        (TensorSpec("x", "FP16", (-1, 4)), "its input 'x' is FP16 [-1,4], not FP32 [-1,4]"),
        (TensorSpec("y", "FP32", (-1, 4)), "it has no input 'x'"),
    ],
)
def test_a_release_takes_what_the_one_before_took(new: TensorSpec, says: str | None) -> None:
    assert changed(Signature((SPEC,), ()), Signature((new,), ())) == says
    more = Signature((SPEC,), (new, TensorSpec("z", "FP32", ())))
    assert changed(Signature((SPEC,), (new,)), more) == "its output 'z' is one too many"


class Obeying:
    """An endpoint that follows; `faults` are its next answers, then it serves."""

    def __init__(self) -> None:
        self.followed: list[tuple[str, str, bytes, bytes | None]] = []
        self.faults: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def follow(self, model: str, release: Release, content: bytes, golden: bytes | None) -> str:
        await self.go.wait()
        self.followed.append((model, release.version, content, golden))
        return self.faults.pop(0) if self.faults else ""


class Stands:
    """What control and the store would say."""

    def __init__(self, *releases: Release) -> None:
        self.wanted = {release.model: release for release in releases}
        self.away = 0

    async def releases(self) -> Mapping[str, Release]:
        if self.away:
            self.away -= 1
            raise Refusal(Reason.UNAVAILABLE, "control is not available")
        return self.wanted

    async def content(self, blob: Blob) -> bytes:
        if blob not in CONTENT:
            raise Refusal(Reason.UNAVAILABLE, "the artifact is not in the store")
        return CONTENT[blob]


def follows(stands: Stands) -> tuple[Following, dict[str, Any]]:
    endpoints: dict[str, Any] = {name: Obeying() for name in ("pool", "both", "gpu")}
    assert all(isinstance(endpoint, Follower) for endpoint in endpoints.values())
    return Following(config(), endpoints, stands), endpoints


async def test_each_gets_its_file() -> None:
    following, endpoints = follows(Stands())
    endpoints["both"].faults = ["no room"]
    lost = ReleaseFile("onnx", Blob("sha256:" + "9" * 64, 1))
    told = await following.follow(release(onnx=ONNX, tflite=TFLITE, gpu=lost))
    assert told == {"pool": "", "both": "no room", "gpu": "the artifact is not in the store"}
    assert endpoints["pool"].followed == [("digits", "2", b"onnx", b"golden")]
    assert endpoints["both"].followed == [("digits", "2", b"tflite", None)]
    assert endpoints["gpu"].followed == []


async def test_a_data_plane_that_starts_asks_until_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "FIRST_PAUSE_S", 0.0)
    stands = Stands(release("2"), release("1", model="other"))
    stands.away = 2
    following, endpoints = follows(stands)
    endpoints["gpu"].faults = ["Triton is away"] * 2
    await asyncio.wait_for(following.begin(), 10)
    assert [version for _, version, *_ in endpoints["gpu"].followed] == ["2", "2", "2"]


async def test_what_control_told_since_is_not_undone() -> None:
    following, endpoints = follows(Stands(release("2")))
    endpoints["pool"].go.clear()
    told = asyncio.create_task(following.follow(release("3")))
    begun = asyncio.create_task(following.begin())
    await until(lambda: len(endpoints["gpu"].followed) == 1)
    endpoints["pool"].go.set()
    await asyncio.wait_for(asyncio.gather(told, begun), 10)
    assert [version for _, version, *_ in endpoints["pool"].followed] == ["3"]


class Plane:
    """The data plane, as control has it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[Mapping[str, str] | Exception] = []

    async def tell(self, release: Release) -> Mapping[str, str]:
        self.asked.append(release.version)
        answer = self.answers.pop(0) if self.answers else {"pool": "", "both": "", "gpu": ""}
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_control_tells_again_until_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_followers, "LOOK_S", 0.0)
    monkeypatch.setattr(control_followers, "FIRST_PAUSE_S", 0.0)
    plane = Plane()
    away = Refusal(Reason.UNAVAILABLE, "the data plane is not available")
    plane.answers = [
        away,
        ValueError("a fault of its own"),
        {"pool": "", "both": "", "gpu": "Triton is away"},
    ]
    followers = Followers(config(), lambda model, version: release(version), plane.tell)
    followers.start({"digits": "1"})
    await until(lambda: not any(followers.view().get("digits", {"": "not yet"}).values()))
    assert plane.asked == ["1"] * 4
    plane.answers = [away]
    with pytest.raises(Refusal):
        await followers.follow("digits", "2")
    assert {model: one.version for model, one in followers.wanted().items()} == {"digits": "2"}
    await until(lambda: followers.view().get("digits") == {"pool": "", "both": "", "gpu": ""})
    assert plane.asked == ["1"] * 4 + ["2"] * 2
    assert await followers.follow("digits", "1") == {"pool": "", "both": "", "gpu": ""}
    assert plane.asked[-1] == "1"
    await followers.close()


async def test_what_can_never_go_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_followers, "LOOK_S", 0.0)
    monkeypatch.setattr(control_followers, "FIRST_PAUSE_S", 0.0)
    only = release(tflite=TFLITE)
    plane = Plane()
    followers = Followers(config(), lambda model, version: only, plane.tell)
    plane.answers = [followers.of(only)]
    followers.start({"digits": "2"})
    await until(lambda: bool(followers.view()))
    for _ in range(50):
        await asyncio.sleep(0)
    assert plane.asked == ["2"]
    await followers.close()
