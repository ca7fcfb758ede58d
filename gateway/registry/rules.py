"""What becomes of tokens and devices: the rules, without a database and without a clock.

Each function takes what is stored and what is asked, and returns what is to be stored. A refusal is an
OipError with one sentence for whoever asked. Wall times are seconds since the epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgewire.places import is_name
from gateway.registry.devices import Enrolled
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

CREDENTIAL_BYTES = 32
"""A SHA-256."""
TOKEN_BYTES = 32
"""256 bits of chance: nobody guesses one, so their number and lookups need no other guard."""
TOKEN_PREFIX = "tgt_"
"""Tells a person, or a scanner for leaked secrets, what it is; and a token never begins with a dash."""
MAX_TTL_S = 30 * 86_400.0
MAX_LABEL = 128

_NAMES = "up to 128 letters, digits, '.', '_' and '-', a letter or digit first"
_ASK_ANEW = "ask an operator for a new one (tidegate devices token)"


@dataclass(frozen=True, slots=True)
class Token:
    """An enrolment token. `device` is the only name that it can be redeemed for; "" where the device
    chooses. `redeemed_by` and `credential_sha256` say who redeemed it; "" and b"" while nobody has."""

    digest: bytes = field(repr=False)
    site: str
    labels: Mapping[str, str]
    device: str
    expires_at: float
    redeemed_by: str = ""
    credential_sha256: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Redemption:
    """A device asks to be enrolled, under the name `device` or, with "", the one that its token
    has or that is made for it."""

    device: str
    credential_sha256: bytes = field(repr=False)


def digest_of(token: str) -> bytes:
    """What is stored of a token's text."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def new_token(
    digest: bytes,
    site: str,
    labels: Mapping[str, str],
    device: str,
    holder: Enrolled | None,
    ttl_s: float,
    now: float,
) -> Token:
    """A token for a device of `site`; `device` pins its name (which `holder` has now), "" does not.
    Raises OipError."""
    if not 0 < ttl_s <= MAX_TTL_S:
        raise OipError(Reason.MALFORMED, f"a token lasts more than 0 and at most {MAX_TTL_S:.0f} seconds")
    for what, name in (("site", site), ("device", device or site)):
        if not is_name(name):
            raise OipError(Reason.MALFORMED, f"{shown(name)} is no name for a {what}: {_NAMES}")
    for key, value in labels.items():
        if not is_name(key) or len(value) > MAX_LABEL or not value.isprintable():
            raise OipError(
                Reason.MALFORMED,
                f"label {shown(key)} is not KEY=VALUE with a name as key and up to {MAX_LABEL} characters "
                "that can be shown",
            )
    if device and holder is not None and not holder.revoked:
        raise _refused(f"a device {device!r} is enrolled already: revoke it before its name is given anew")
    return Token(digest, site, dict(labels), device, now + ttl_s)


def wanted_name(token: Token | None, asked: Redemption) -> str:
    """The name that would be enrolled: the token's, the device's wish, or one made of its credential's
    digest, which stays the same however often it asks. Raises OipError where there can be none."""
    if token is None:
        raise _refused(f"no such enrolment token: {_ASK_ANEW}")
    if len(asked.credential_sha256) != CREDENTIAL_BYTES:
        raise OipError(Reason.MALFORMED, "a credential's digest is the 32 bytes of its SHA-256")
    if token.device and asked.device and asked.device != token.device:
        raise _refused(
            f"this enrolment token is for device {token.device!r}, not {shown(asked.device)}: "
            "leave the device's own name out, or ask for another token"
        )
    name = token.device or asked.device or f"device-{asked.credential_sha256[:4].hex()}"
    if not is_name(name):
        raise OipError(
            Reason.MALFORMED,
            f"{shown(name)} is no name for a device: {_NAMES}",
        )
    return name


def redeem(
    token: Token | None, holder: Enrolled | None, spent: bool, asked: Redemption, now: float
) -> tuple[Token, Enrolled]:
    """Enrol a device: the token as redeemed, and the device.

    `holder` is who has the name that `wanted_name` returns, revoked ones too; `spent` says whether the
    credential redeemed another token. Asking again with the same token, name and credential gives the
    same again, expired or not: the first answer may have been lost. Raises OipError.
    """
    name = wanted_name(token, asked)
    assert token is not None
    if token.redeemed_by:
        same = token.redeemed_by == name and token.credential_sha256 == asked.credential_sha256
        if not same or holder is None or holder.credential_sha256 != asked.credential_sha256:
            raise _refused(f"this enrolment token was used already: {_ASK_ANEW}")
        if holder.revoked:
            raise _refused(f"device {name!r} was revoked: {_ASK_ANEW}")
        return token, holder
    if now >= token.expires_at:
        raise _refused(f"this enrolment token has expired: {_ASK_ANEW}")
    if holder is not None and not holder.revoked:
        raise _refused(
            f"a device {name!r} is enrolled already: choose another name, or revoke that one first"
        )
    if spent:
        raise _refused(
            "this credential was enrolled before: empty the agent's state folder, so that it makes a new one"
        )
    redeemed = replace(token, redeemed_by=name, credential_sha256=asked.credential_sha256)
    return redeemed, Enrolled(name, token.site, dict(token.labels), asked.credential_sha256)


def drained(device: Enrolled | None, name: str, drain: bool) -> Enrolled:
    """The device with new requests kept from it, or let to it again. Raises OipError."""
    known = _known(device, name)
    if known.revoked:
        raise _refused(f"device {name!r} was revoked: nothing is sent to it")
    return replace(known, drained=drain)


def revoked(device: Enrolled | None, name: str) -> Enrolled:
    """The device shut out for good; its name can be enrolled anew. Raises OipError."""
    return replace(_known(device, name), revoked=True)


def _known(device: Enrolled | None, name: str) -> Enrolled:
    if device is None:
        raise OipError(Reason.NOT_FOUND, f"no device {shown(name)} is enrolled")
    return device


def _refused(message: str) -> OipError:
    return OipError(Reason.FORBIDDEN, message)
