"""Device groups in a decision, and which device an attempt goes to."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.config import Config, EndpointConfig
from gateway.core.decision import Attempt, Candidate, Decision, Note, Outcome, Snapshot, VariantState
from gateway.core.errors import AttemptError
from gateway.core.fleet import Device, group_of
from gateway.core.place import Origin, Place, Tier
from gateway.core.ports import Permit
from gateway.core.request import Caller
from gateway.decide import Attempts, decide, may_attempt
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from gateway.routing.record import to_record
from oip.reasons import Reason
from tests.unit.decide_config import (
    NOW,
    Fixed,
    config_of,
    endpoint,
    figure,
    model,
    policy,
    request_of,
    snapshot_of,
)

BROKEN = AttemptError(Reason.UNAVAILABLE, "gone", grpc_status="UNAVAILABLE", sent=True, retryable=True)
HERE = ("plant-7", None)


def device(name: str, site: str | None = "plant-7", region: str | None = None, **changes: Any) -> Device:
    known = Device(
        name, Place(Tier.DEVICE, region, site, name), True, heard_at=NOW, models=frozenset({("digits", "1")})
    )
    return replace(known, **changes)


def configured(**changes: Any) -> Config:
    """A group `cams` before a cloud endpoint `cheap`; everything is public."""
    sections: dict[str, Any] = {
        "endpoints": [EndpointConfig(name="cams", kind="edge"), endpoint("cheap", region="eu")],
        "models": [
            model(
                privacy="public",
                variants=[{"endpoint": "cams", "artifact": "d.tflite"}, {"endpoint": "cheap"}],
            )
        ],
        "policies": [policy(retry={"num_retries": 10})],
    }
    return config_of(**{**sections, **changes})


def snapshot_with(*devices: Device, config: Config | None = None, **more: Any) -> Snapshot:
    known = {"cams": VariantState(True, figure(5)), "cheap": VariantState(True, figure(40))}
    snapshot = snapshot_of(config or configured(), known)
    return replace(snapshot, groups={"cams": group_of(devices)}, **more)


def decided(snapshot: Snapshot, **options: Any) -> Decision:
    return decide(snapshot, request_of(**options), NOW, Fixed())


def first_note(decision: Decision) -> Note:
    return decision.candidates[0].reasons[0]


def test_a_group_is_one_candidate_whatever_it_holds() -> None:
    decision = decided(snapshot_with(*(device(f"cam-{i}") for i in range(30))))
    assert [c.variant.endpoint for c in decision.plan] == ["cams", "cheap"]
    assert decision.plan[0].place == Place(Tier.DEVICE)
    assert decision.plan[0].device == ""
    assert to_record(decision)["candidates"][0]["tier"] == "device"


@pytest.mark.parametrize(
    ("devices", "options", "note"),
    [
        ((), {}, Note("health", "no device is enrolled")),
        ((), {"privacy": "american"}, Note("health", "no device is enrolled")),
        ((device("cam-7a", connected=False),), {}, Note("health", "device cam-7a is away")),
        ((device("cam-7a", drained=True),), {}, Note("health", "device cam-7a is drained")),
        (
            (device("cam-7a", models=frozenset({("faces", "1")})),),
            {},
            Note("health", "device cam-7a does not have the model ready"),
        ),
        (
            (
                device("a", connected=False),
                device("b", drained=True),
                device("c", "plant-9", connected=False),
            ),
            {},
            Note("health", "none of the 3 devices that may answer is connected with the model ready"),
        ),
        (
            (device("a", connected=False), device("b", "plant-9")),
            {"privacy": "personal"},
            Note("health", "device a is away"),
        ),
        (
            (device("b", "plant-9"), device("c", None)),
            {"privacy": "personal"},
            Note("privacy", "class 'personal' does not allow any of its devices"),
        ),
    ],
)
def test_why_no_device_may_or_can(devices: tuple[Device, ...], options: dict[str, Any], note: Note) -> None:
    decision = decided(snapshot_with(*devices), **options)
    assert first_note(decision) == note
    assert "cams" not in [c.variant.endpoint for c in decision.plan]


def test_a_version_that_no_device_has() -> None:
    snapshot = snapshot_with(device("a"))
    decision = decided(snapshot, version="2")
    assert first_note(decision) == Note("version", "no device has version 2 ready")
    assert decided(snapshot, version="1").plan[0].variant.endpoint == "cams"


def test_amid_a_rollout_a_group_has_two_versions() -> None:
    moved = replace(device("b"), models=frozenset({("digits", "2")}))
    snapshot = snapshot_with(device("a"), moved, replace(moved, name="c", connected=False))
    asked: dict[str, set[str]] = {}
    for version in ("", "1", "2"):
        run = Run(snapshot, version=version)
        with run.attempts:
            tried = [run.next(), run.next(BROKEN), run.next(BROKEN)]
        asked[version] = {str(name) for name in tried if name != "cheap" and not isinstance(name, Halt)}
    assert asked == {"": {"a", "b"}, "1": {"a"}, "2": {"b"}}
    away = snapshot_with(device("a"), replace(moved, connected=False))
    assert first_note(decided(away, version="2")) == Note("version", "no device has version 2 ready")
    nobody = snapshot_with(device("a", connected=False))
    assert first_note(decided(nobody, version="2")).rule == "health"


def test_the_word_of_the_hub_on_readiness_is_not_the_devices() -> None:
    snapshot = snapshot_with(device("a"))
    stale = {key: replace(state, ready=False) for key, state in snapshot.variants.items()}
    assert decided(replace(snapshot, variants=stale)).plan[0].variant.endpoint == "cams"
    down = replace(
        snapshot, endpoints={**snapshot.endpoints, "cams": replace(snapshot.endpoints["cams"], up=False)}
    )
    assert first_note(decided(down)) == Note("health", "the endpoint is down")


CAM_7A = Caller(device="cam-7a", origin=Origin("plant-7", "cam-7a"))


def test_the_same_device_is_the_one_that_asks() -> None:
    own = configured(
        privacy={
            "default": "own",
            "classes": {
                "own": {
                    "allow": [{"tier": ["device"], "same": ["device"]}, {"tier": ["site"], "same": ["site"]}]
                },
                "public": {"allow": [{"tier": ["device", "site", "cloud"]}]},
            },
        },
        models=[
            model(privacy="own", variants=[{"endpoint": "cams", "artifact": "d"}, {"endpoint": "cheap"}])
        ],
    )
    fleet = [device("cam-7a"), device("cam-7b"), device("cam-9a", "plant-9")]
    decision = decided(snapshot_with(*fleet, config=own), caller=CAM_7A)
    assert decision.origin == Origin("plant-7", "cam-7a")
    assert [c.variant.endpoint for c in decision.plan] == ["cams"]
    run = Run(snapshot_with(*fleet, config=own), caller=CAM_7A)
    with run.attempts:
        assert run.next() == "cam-7a"
        assert run.permit.allowed.encode() == "tier=device;site=plant-7;device=cam-7a,tier=site;site=plant-7"
        assert run.next(BROKEN) is Halt.NO_PLACE

    away = decided(snapshot_with(device("cam-7a", connected=False), *fleet[1:], config=own), caller=CAM_7A)
    assert first_note(away) == Note("health", "device cam-7a is away")
    assert away.refused is Reason.NO_CANDIDATE
    assert "device cam-7a is away" in away.message
    drained = decided(snapshot_with(device("cam-7a", drained=True), *fleet[1:], config=own), caller=CAM_7A)
    assert first_note(drained) == Note("health", "device cam-7a is drained")
    nobody = decided(snapshot_with(*fleet, config=own))
    assert nobody.refused is Reason.PRIVACY
    # The name alone is not the device: another hub may have one of that name.
    elsewhere = decided(snapshot_with(device("cam-7a", "plant-9"), config=own), caller=CAM_7A)
    assert elsewhere.refused is Reason.PRIVACY


class Run:
    """A decision and the attempts along it; `next` gives the device, or the endpoint's name."""

    def __init__(self, snapshot: Snapshot, rng: Any = None, **options: Any) -> None:
        self.snapshot = snapshot
        request = request_of(**options)
        self.decision = decide(snapshot, request, NOW, Fixed())
        self.attempts = Attempts(snapshot, self.decision, request, RetryBudget(), rng or Fixed())
        self.permit: Permit
        self.candidate: Candidate

    def next(self, failure: AttemptError | None = None, snapshot: Snapshot | None = None) -> str | Halt:
        found = self.attempts.next(snapshot or self.snapshot, None, failure)
        if isinstance(found, Halt):
            return found
        self.candidate, self.permit = found
        assert self.permit.device == self.candidate.device
        assert self.permit.place == self.candidate.place
        return self.candidate.device or self.candidate.variant.endpoint


def test_another_device_before_another_endpoint() -> None:
    run = Run(snapshot_with(device("a"), device("b", "plant-9"), device("c", connected=False)))
    with run.attempts:
        first, second = run.next(), run.next(BROKEN)
        assert {first, second} == {"a", "b"}
        assert run.next(BROKEN) == "cheap"
        assert run.permit.device == ""
        assert run.next(BROKEN) is Halt.NO_PLACE


def test_devices_count_as_retries() -> None:
    config = configured(policies=[policy(retry={"num_retries": 1})])
    run = Run(snapshot_with(device("a"), device("b"), device("c"), config=config))
    with run.attempts:
        run.next()
        run.next(BROKEN)
        assert run.next(BROKEN) is Halt.NUM_RETRIES


def test_the_device_that_suits_best() -> None:
    fleet = [
        device("hot", temperature_c=95.0),
        device("busy", inflight=3),
        device("good", battery_percent=70.0),
    ]
    run = Run(snapshot_with(*fleet))
    with run.attempts:
        assert run.next() == "good"
        assert run.permit.place == Place(Tier.DEVICE, None, "plant-7", "good")
    mine = replace(snapshot_with(*fleet), device_load={"good": 20})
    with Run(mine).attempts as attempts:
        found = attempts.next(mine, None)
        assert not isinstance(found, Halt)
        assert found[0].device == "busy"


def test_the_device_that_asks_is_drawn_no_more_often_than_others() -> None:
    snapshot, rng = snapshot_with(device("cam-7a"), device("cam-7b"), device("cam-7c")), random.Random(1)
    first = [Run(snapshot, rng, caller=CAM_7A).next() for _ in range(600)]
    assert 150 < first.count("cam-7a") < 250


def test_where_a_device_is_by_now_counts() -> None:
    run = Run(snapshot_with(device("a"), device("b")), privacy="personal")
    moved = snapshot_with(device("a", "plant-9"), device("b", "plant-9"), config=run.snapshot.config)
    with run.attempts:
        assert run.next(snapshot=moved) is Halt.PRIVACY
    with Run(run.snapshot, privacy="personal").attempts as attempts:
        one = snapshot_with(device("a", "plant-9"), device("b"), config=run.snapshot.config)
        found = attempts.next(one, None)
        assert not isinstance(found, Halt)
        assert found[0].device == "b"
        left = snapshot_with(device("a", drained=True), config=run.snapshot.config)
        assert attempts.next(left, None, BROKEN) is Halt.NO_PLACE


def test_what_may_be_attempted_of_a_group() -> None:
    run = Run(snapshot_with(device("a"), device("b", "plant-9")), privacy="personal")
    whole = run.decision.plan[0]
    with run.attempts:
        assert run.next() == "a"
    assert may_attempt(run.snapshot, run.decision, whole)
    assert may_attempt(run.snapshot, run.decision, run.candidate)
    other = replace(run.candidate, device="b", place=Place(Tier.DEVICE, None, "plant-9", "b"))
    assert not may_attempt(run.snapshot, run.decision, other)
    pretended = replace(other, place=run.candidate.place)
    assert not may_attempt(run.snapshot, run.decision, pretended)
    unknown = replace(run.candidate, device="nobody")
    assert not may_attempt(run.snapshot, run.decision, unknown)
    moved = snapshot_with(device("a", "plant-9"), config=run.snapshot.config)
    assert not may_attempt(moved, run.decision, run.candidate)
    assert not may_attempt(moved, run.decision, whole)
    assert not may_attempt(replace(run.snapshot, groups={}), run.decision, run.candidate)
    placed = configured(
        endpoints=[
            endpoint("cams", tier="device", site="plant-7", device="a"),
            endpoint("cheap", region="eu"),
        ]
    )
    assert not may_attempt(snapshot_of(placed), run.decision, run.candidate)
    assert not may_attempt(snapshot_of(placed), run.decision, whole)


def test_an_endpoint_that_became_a_group_is_not_what_was_decided() -> None:
    placed = configured(
        endpoints=[
            endpoint("cams", tier="device", site="plant-7", device="a"),
            endpoint("cheap", region="eu"),
        ]
    )
    decision = decided(snapshot_of(placed))
    (at_a,) = [c for c in decision.plan if c.variant.endpoint == "cams"]
    assert may_attempt(snapshot_of(placed), decision, at_a)
    assert not may_attempt(snapshot_with(device("a")), decision, at_a)


def test_the_record_names_the_device_that_was_tried() -> None:
    decision = decided(snapshot_with(device("a")))
    record = to_record(
        decision,
        [Attempt("cams", Outcome.FAILED, 1.0, None, "a"), Attempt("cheap", Outcome.OK, 2.0, 0.0)],
    )
    assert [a.get("device") for a in record["attempts"]] == ["a", None]
    assert "device" not in record["attempts"][1]
