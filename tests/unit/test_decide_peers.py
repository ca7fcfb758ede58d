"""Requests that another gateway passes on: the places it leaves, and the gateways they have passed."""

from __future__ import annotations

from typing import Any

import pytest

from edgewire.allowed import AllowedSet, decode
from gateway.core.decision import Note, Snapshot, VariantKey, VariantState
from gateway.core.place import Origin, Place, Tier
from gateway.core.request import Caller, Options
from gateway.decide import Attempts, compiled, decide, gateway_refusal
from gateway.decide.tables import WALLS_KEPT
from gateway.resilience.budget import RetryBudget
from gateway.resilience.retry import Halt
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from tests.unit.decide_config import NOW, Fixed, config_of, endpoint, model, request_of, snapshot_of

PEER = Caller(peer="gw-7", origin=Origin("plant-7"))
ALL = "tier=device+site+regional+cloud"


def peer(allowed: str = ALL, *hops: str, **options: Any) -> dict[str, Any]:
    return {"caller": PEER, "allowed": decode(allowed), "hops": hops or ("gw-7",), **options}


def test_a_peers_set_is_one_more_class() -> None:
    snapshot = snapshot_of(config_of())
    decision = decide(snapshot, request_of(**peer("tier=site,tier=cloud;region=us")), NOW, Fixed())
    assert decision.refused is Reason.PRIVACY
    assert decision.message == (
        "No endpoint of model 'digits' is in a place that class 'internal' allows and the peer's"
        " tidegate-allowed leaves"
    )
    cheap, _, us = decision.candidates
    assert cheap.reasons[0] == Note("privacy", "tidegate-allowed does not name this place")
    assert us.reasons[0] == Note("privacy", "class 'internal' does not allow this place")
    neither = decide(snapshot, request_of(**peer("tier=site")), NOW, Fixed()).candidates[2]
    assert neither.reasons[0] == Note(
        "privacy", "class 'internal' does not allow this place, and tidegate-allowed does not name it"
    )
    wide = decide(snapshot, request_of(**peer()), NOW, Fixed())
    assert [c.variant.endpoint for c in wide.plan] == ["dear", "cheap"]
    assert wide.allowed == decode(ALL)


def test_the_permit_says_what_both_leave() -> None:
    snapshot = snapshot_of(config_of())
    request = request_of(**peer("tier=cloud,tier=site;site=plant-7+plant-9", "gw-1", "gw-7"), max_cost=0.5)
    decision = decide(snapshot, request, NOW, Fixed())
    with Attempts(snapshot, decision, request, RetryBudget(), Fixed()) as attempts:
        found = attempts.next(snapshot, None)
    assert not isinstance(found, Halt)
    permit = found[1]
    assert permit.allowed.encode() == "tier=site;site=plant-7+plant-9,tier=cloud;region=eu"
    assert permit.hops == ("gw-1", "gw-7", "gw")
    assert (permit.place, permit.max_cost) == (Place(Tier.CLOUD, "eu"), 0.5)


def refusal(**options: Any) -> tuple[Reason, str] | None:
    config = config_of()
    early = gateway_refusal(config, Options(**options), None)
    late = decide(snapshot_of(config), request_of(**options), NOW, Fixed())
    assert (early is None) == (late.refused is None)
    if early is None:
        return None
    assert (late.refused, late.message) == (early.reason, early.message)
    return early.reason, early.message


def test_this_gateway_must_be_in_the_set_itself() -> None:
    for text in ("none", "tier=cloud", "tier=site;site=plant-9"):
        assert refusal(**peer(text)) == (
            Reason.PRIVACY,
            "The places of tidegate-allowed leave out this gateway's place (tier site, site plant-7), so the"
            " request is not taken",
        )
    assert refusal(**peer("tier=site;site=plant-7,tier=cloud")) is None


def test_a_circle_ends() -> None:
    assert refusal(**peer(ALL, "gw-7", "gw", "gw-1")) == (
        Reason.LOOP,
        "The request has passed gateway 'gw' before: routes lead in a circle",
    )
    assert refusal(**peer(ALL, "gw-7", "gw-1")) is None


def test_a_gateway_that_was_passed_is_no_place_to_go() -> None:
    snapshot = snapshot_of(config_of())
    decision = decide(snapshot, request_of(**peer(ALL, "gw-7", "dear")), NOW, Fixed())
    assert [c.variant.endpoint for c in decision.plan] == ["cheap"]
    assert decision.candidates[1].reasons == (Note("hops", "the request has passed dear before"),)


def test_the_origin_is_the_peers_and_never_this_gateways() -> None:
    near = config_of(
        endpoints=[endpoint("near", tier="site", site="plant-7")],
        models=[model(privacy="personal", variants=[{"endpoint": "near"}])],
    )

    def plan(**options: Any) -> list[str]:
        decision = decide(snapshot_of(near, {}), request_of(**options), NOW, Fixed())
        return [c.variant.endpoint for c in decision.plan]

    assert plan() == ["near"]
    assert plan(**peer()) == ["near"]
    elsewhere = Caller(peer="gw-9", origin=Origin("plant-9"))
    assert plan(
        **peer(),
    ) == ["near"]
    assert plan(**{**peer(), "caller": elsewhere}) == []
    assert plan(**{**peer(), "caller": Caller(peer="gw-0")}) == []
    assert plan(**{**peer(), "site": "plant-9"}) == []


def test_walls_of_peers_are_told_apart_and_bounded() -> None:
    tables = compiled(config_of())
    narrow, wide = decode("tier=site"), decode(ALL)
    for left in (narrow, wide, narrow):
        wall = tables.wall(("internal",), Origin("plant-7"), left)
        assert bool(wall.endpoints["cheap"]) == (left is narrow)
    assert tables.wall(("internal",), Origin("plant-7")).endpoints["cheap"] == ()
    kept = tables.wall(("internal",), Origin("plant-7"), narrow)
    for i in range(2 * WALLS_KEPT):
        tables.wall(("internal",), Origin("plant-7"), decode(f"site=s{i}"))
        assert tables.wall(("internal",), Origin("plant-7"), narrow) is kept, "what is used stays"
    assert len(tables.walls) <= WALLS_KEPT


def test_a_wall_remembers_sites_and_not_devices() -> None:
    wall = compiled(config_of()).wall(("personal",), Origin("plant-7", "cam-1"), decode("device=cam-1+cam-2"))
    assert wall.devices == {"cam-1", "cam-2"}
    before = len(wall._of)
    for i in range(1000):
        assert wall.of(Place(Tier.DEVICE, None, "plant-7", f"other-{i}")) == ("tidegate-allowed",)
    assert len(wall._of) == before + 1
    assert wall.of(Place(Tier.DEVICE, None, "plant-7", "cam-2")) == ()
    assert wall.of(Place(Tier.DEVICE, None, "plant-9", "cam-2")) == ("personal",)
    for i in range(5000):
        wall.of(Place(Tier.SITE, None, f"s{i}"))
    assert len(wall._of) <= 4096


def test_the_set_travels_with_the_same_meaning() -> None:
    wall = compiled(config_of()).wall(("personal",), Origin("plant-7"), AllowedSet(()))
    assert wall.allowed.encode() == "none"
    assert wall.gateway == ("tidegate-allowed",)


X = Signature((TensorSpec("x", "FP32", (-1, 64)),), ())
OTHER = Signature((TensorSpec("x", "FP32", (-1, 32)),), ())


@pytest.mark.parametrize(
    ("told", "plan"),
    [
        ({}, ["dear", "cheap"]),
        ({"cheap": X}, ["dear", "cheap"]),
        ({"cheap": X, "dear": X}, ["dear", "cheap"]),
        ({"cheap": X, "dear": OTHER}, ["cheap"]),
        ({"dear": OTHER}, ["dear", "cheap"]),
        ({"cheap": OTHER, "dear": X}, ["cheap"]),
    ],
)
def test_the_first_signature_told_is_the_models(told: dict[str, Signature], plan: list[str]) -> None:
    known = snapshot_of(config_of())
    states = {
        key: VariantState(True, state.latency, signature=told.get(key.endpoint))
        for key, state in known.variants.items()
    }
    snapshot = Snapshot(known.config, "r", known.endpoints, states)
    decision = decide(snapshot, request_of(), NOW, Fixed())
    assert [c.variant.endpoint for c in decision.plan] == plan
    if len(plan) == 1:
        (excluded,) = [c for c in decision.candidates if c.variant.endpoint == "dear"]
        assert excluded.reasons[0].rule == "signature"
        assert excluded.reasons[0].detail.startswith("not the same model: its input 'x' is FP32 [-1,")
    assert VariantKey("cheap", "digits", "") in states
