from __future__ import annotations

from typing import Any

import pytest

from gateway.core.request import Options
from gateway.decide import decide, gateway_refusal
from oip.reasons import Reason
from tests.unit.decide_config import NOW, Fixed, config_of, endpoint, model, request_of, snapshot_of

DEVICE = {"tier": "device", "site": "plant-7", "device": "cam-1"}
CLOUD = {"tier": "cloud", "region": "us"}


def gateway(**location: str) -> dict[str, Any]:
    return {"gateway": {"name": "gw", "location": location}}


def refusal(
    options: Options | None = None, name: str | None = "digits", **changes: Any
) -> tuple[Reason, str] | None:
    found = gateway_refusal(config_of(**changes), options or Options(), name)
    return None if found is None else (found.reason, found.message)


def test_an_allowed_place_takes_the_request() -> None:
    assert refusal() is None
    assert refusal(Options(privacy="personal")) is None
    assert refusal(name=None) is None


def test_the_callers_class_is_asked_before_the_model_is_known() -> None:
    for name in (None, "digits", "unknown"):
        found = refusal(Options(privacy="secret"), name)
        assert found == (
            Reason.PRIVACY,
            "Privacy class 'secret' does not allow this gateway's place (tier site, site plant-7), so the"
            " request is not taken; it may be served by the device's own agent",
        )


def test_the_models_class_is_asked_once_it_is_known() -> None:
    secret = {"models": [model(privacy="secret")]}
    assert refusal(name=None, **secret) is None
    found = refusal(**secret)
    assert found is not None
    assert found[0] is Reason.PRIVACY
    assert refusal(**secret, **gateway(**DEVICE)) is None
    denied = refusal(Options(device="cam-2"), **secret, **gateway(**DEVICE))
    assert denied is not None
    assert "tier device, site plant-7, device cam-1" in denied[1]


def test_who_may_serve_it_instead() -> None:
    places = [endpoint("near", tier="site", site="plant-9"), endpoint("eu", region="eu")]
    two = model(variants=[{"endpoint": "near"}, {"endpoint": "eu"}])
    changes = {"endpoints": places, "models": [two], **gateway(**CLOUD)}
    found = refusal(Options(site="plant-9", privacy="personal"), **changes)
    assert found == (
        Reason.PRIVACY,
        "Privacy class 'personal' does not allow this gateway's place (tier cloud, region us), so the"
        " request is not taken; it may be served by the device's own agent or the gateway at site plant-9"
        " or an agent at site plant-9",
    )
    found = refusal(**changes)
    assert found == (
        Reason.PRIVACY,
        "Privacy class 'internal' does not allow this gateway's place (tier cloud, region us), so the"
        " request is not taken; it may be served by the gateway at its own site or a cloud gateway in"
        " region eu; of its endpoints near, eu would be allowed",
    )


def test_classes_that_no_gateway_can_serve() -> None:
    found = refusal(Options(privacy="american"), models=[model(privacy="secret")])
    assert found is not None
    assert found[1] == (
        "Privacy class 'secret' does not allow this gateway's place (tier site, site plant-7), so the"
        " request is not taken; it may be served by no place"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(privacy="nope"), "Unknown privacy class 'nope' in tidegate-privacy"),
        (Options(policy="nope"), "Unknown policy 'nope' in tidegate-policy"),
        (Options(privacy="personal", policy="default"), None),
        (Options(), None),
    ],
)
def test_names_in_options(options: Options, message: str | None) -> None:
    assert refusal(options) == (None if message is None else (Reason.BAD_OPTION, message))


def test_unknown_model() -> None:
    assert refusal(name="nope") == (
        Reason.UNKNOWN_MODEL,
        "Request for unknown model: 'nope' is not found",
    )


@pytest.mark.parametrize("privacy", [None, "personal", "secret", "nope"])
@pytest.mark.parametrize("name", ["digits", "nope"])
def test_decide_asks_the_same_again(privacy: str | None, name: str) -> None:
    config = config_of()
    early = gateway_refusal(config, Options(privacy=privacy), name)
    decision = decide(snapshot_of(config), request_of(name, privacy=privacy), NOW, Fixed())
    if early is None:
        assert decision.candidates
    else:
        assert (decision.refused, decision.message) == (early.reason, early.message)
        assert decision.plan == ()
