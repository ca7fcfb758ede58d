"""Who is enrolled by which token: the rules alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.registry import rules
from gateway.registry.devices import Enrolled
from gateway.registry.rules import Redemption, Token
from oip.errors import OipError
from oip.reasons import Reason

NOW = 1000.0
ONE, OTHER = b"1" * 32, b"2" * 32
TOKEN = Token(rules.digest_of("t"), "plant-7", {"soc": "imx8mp"}, "", NOW + 60)
PINNED = replace(TOKEN, device="cam-7a")
CAM = Enrolled("cam-7a", "plant-7", {"soc": "imx8mp"}, ONE)
ASKED = Redemption("cam-7a", ONE)


def test_token_gives_its_site_and_labels_and_the_asked_name():
    token, device = rules.redeem(TOKEN, None, False, ASKED, NOW)
    assert device == CAM
    assert (token.redeemed_by, token.credential_sha256) == ("cam-7a", ONE)


def test_pinned_token_names_a_device_that_asks_for_no_name():
    asked = Redemption("", ONE)
    assert rules.wanted_name(PINNED, asked) == "cam-7a"
    assert rules.redeem(PINNED, None, False, asked, NOW)[1].name == "cam-7a"


def test_a_device_without_any_name_gets_one_that_stays_the_same():
    asked = Redemption("", ONE)
    token, device = rules.redeem(TOKEN, None, False, asked, NOW)
    assert device.name == rules.wanted_name(token, asked) == "device-31313131"
    assert rules.is_name(device.name)
    assert rules.redeem(token, device, True, asked, NOW + 1e6) == (token, device)
    assert rules.wanted_name(TOKEN, Redemption("", OTHER)) == "device-32323232"


def test_same_question_again_gets_the_same_answer_even_after_the_token_expired():
    token, device = rules.redeem(TOKEN, None, False, ASKED, NOW)
    assert rules.redeem(token, device, False, ASKED, NOW + 1e6) == (token, device)
    drained = replace(device, drained=True)
    assert rules.redeem(token, drained, False, ASKED, NOW)[1].drained


USED = replace(TOKEN, redeemed_by="cam-7a", credential_sha256=ONE)


@pytest.mark.parametrize(
    ("token", "holder", "spent", "asked", "now", "reason", "word"),
    [
        (None, None, False, ASKED, NOW, Reason.FORBIDDEN, "no such enrolment token"),
        (TOKEN, None, False, ASKED, NOW + 60, Reason.FORBIDDEN, "expired"),
        (TOKEN, CAM, False, Redemption("cam-7a", OTHER), NOW, Reason.FORBIDDEN, "enrolled already"),
        (TOKEN, None, True, ASKED, NOW, Reason.FORBIDDEN, "makes a new one"),
        (TOKEN, None, False, Redemption("../etc", ONE), NOW, Reason.MALFORMED, "no name for a device"),
        (TOKEN, None, False, Redemption("c" * 129, ONE), NOW, Reason.MALFORMED, "no name for a device"),
        (TOKEN, None, False, Redemption("cam\n", ONE), NOW, Reason.MALFORMED, "no name for a device"),
        (TOKEN, None, False, Redemption("cam-7a", b"short"), NOW, Reason.MALFORMED, "32 bytes"),
        (PINNED, None, False, Redemption("cam-7b", ONE), NOW, Reason.FORBIDDEN, "for device 'cam-7a'"),
        (USED, CAM, False, Redemption("cam-7a", OTHER), NOW, Reason.FORBIDDEN, "used already"),
        (USED, None, False, Redemption("cam-7b", ONE), NOW, Reason.FORBIDDEN, "used already"),
        (USED, replace(CAM, revoked=True), False, ASKED, NOW, Reason.FORBIDDEN, "revoked"),
        # The name has been given anew since: the first credential is worth nothing any more.
        (USED, replace(CAM, credential_sha256=OTHER), False, ASKED, NOW, Reason.FORBIDDEN, "used already"),
    ],
)
def test_everything_else_is_refused_in_one_sentence(
    token: Token | None,
    holder: Enrolled | None,
    spent: bool,
    asked: Redemption,
    now: float,
    reason: Reason,
    word: str,
):
    with pytest.raises(OipError, match=word) as caught:
        rules.redeem(token, holder, spent, asked, now)
    assert caught.value.reason is reason
    assert "\n" not in caught.value.message


def test_revoked_name_is_given_anew_to_another_credential():
    gone = replace(CAM, revoked=True, drained=True)
    _, device = rules.redeem(TOKEN, gone, False, Redemption("cam-7a", OTHER), NOW)
    assert device == replace(CAM, credential_sha256=OTHER)


def test_drained_device_takes_requests_again_and_a_revoked_one_never():
    assert rules.drained(CAM, "cam-7a", True).drained
    assert not rules.drained(replace(CAM, drained=True), "cam-7a", False).drained
    gone = rules.revoked(CAM, "cam-7a")
    assert rules.revoked(gone, "cam-7a") == gone == replace(CAM, revoked=True)
    with pytest.raises(OipError, match="revoked"):
        rules.drained(gone, "cam-7a", False)
    for change in (lambda: rules.revoked(None, "x"), lambda: rules.drained(None, "x", True)):
        with pytest.raises(OipError) as caught:
            change()
        assert caught.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("site", "labels", "device", "ttl_s"),
    [
        ("plant 7", {}, "", 60),
        ("", {}, "", 60),
        ("plant-7", {}, "cam 7", 60),
        ("plant-7", {"": "x"}, "", 60),
        ("plant-7", {"a b": "x"}, "", 60),
        ("plant-7", {"a": "x" * 129}, "", 60),
        ("plant-7", {"a": "\n"}, "", 60),
        ("plant-7", {}, "", 0),
        ("plant-7", {}, "", -1),
        ("plant-7", {}, "", 31 * 86_400),
        ("plant-7", {}, "", float("nan")),
    ],
)
def test_token_for_what_cannot_be_is_refused(site: str, labels: dict[str, str], device: str, ttl_s: float):
    with pytest.raises(OipError) as caught:
        rules.new_token(b"d", site, labels, device, None, ttl_s, NOW)
    assert caught.value.reason is Reason.MALFORMED


def test_token_for_a_name_in_use_is_refused_before_anyone_walks_to_the_device():
    with pytest.raises(OipError, match="enrolled already"):
        rules.new_token(b"d", "plant-7", {}, "cam-7a", CAM, 60, NOW)
    token = rules.new_token(b"d", "plant-7", {"a": ""}, "cam-7a", replace(CAM, revoked=True), 60, NOW)
    assert token == Token(b"d", "plant-7", {"a": ""}, "cam-7a", NOW + 60)


def test_nothing_prints_a_secret():
    assert "1111" not in repr(CAM) + repr(ASKED) + repr(USED)
    assert repr(rules.digest_of("t")) not in repr(TOKEN)
