"""Who asks: from the credential of a call to a `Caller`, and from its metadata to its `Options`.

A credential is `authorization: Bearer X`, of a peer gateway (configured) or of an enrolled device. Only
digests are held and compared, and the text is kept nowhere. A gateway that has neither peers nor
device groups can know nobody, so it does not look at the header: it may be meant for someone else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from gateway.core.call import Metadata
from gateway.core.config import Config
from gateway.core.errors import Refusal
from gateway.core.fleet import Device
from gateway.core.place import Origin
from gateway.core.request import ANYBODY, Caller, Options
from gateway.pipeline.options import PEER_OPTIONS, parse_options
from oip.reasons import Reason

HEADER = "authorization"
MAX_CREDENTIAL = 4096
"""Longest credential that is looked at, in characters."""

DeviceLookup = Callable[[bytes], Device | None]
"""SHA-256 of a credential -> the enrolled device that shows it."""


class Callers:
    """Knows the peers of one configuration, and devices through `device`."""

    def __init__(self, config: Config, device: DeviceLookup) -> None:
        self._device = device
        self._peers = [
            (_digest(peer.token), Caller(peer=peer.name, origin=Origin(peer.site)))
            for peer in config.gateway.peers
        ]
        self._looks = bool(self._peers) or any(e.place is None for e in config.endpoints)

    def options(self, metadata: Metadata, *, inference: bool = False) -> Options:
        """The options of a call, with its caller.

        Raises Refusal: UNAUTHENTICATED for a credential that is none or nobody's, BAD_OPTION for a
        wrong option, for a peer's option from anybody else, and for a peer's `inference` without the
        set of places that its data may go to.
        """
        caller = self._identify(metadata)
        options = parse_options(metadata)
        if not caller.peer:
            for key in PEER_OPTIONS:
                if any(given == key for given, _ in metadata):
                    raise Refusal(
                        Reason.BAD_OPTION,
                        f"{key} is taken from a peer gateway alone, by its credential: leave it out",
                    )
        elif inference and options.allowed is None:
            raise Refusal(
                Reason.BAD_OPTION,
                "a peer gateway must say where the data may go: send tidegate-allowed with each inference",
            )
        return replace(options, caller=caller)

    def known(self, metadata: Metadata) -> Caller:
        """Who makes a call whose options are wrong; ANYBODY where the credential is."""
        try:
            return self._identify(metadata)
        except Refusal:
            return ANYBODY

    def _identify(self, metadata: Metadata) -> Caller:
        if not self._looks:
            return ANYBODY
        given = [value for key, value in metadata if key == HEADER]
        if not given:
            return ANYBODY
        if len(given) > 1:
            _refuse("authorization is given more than once: give it once")
        text = given[0]
        scheme, _, credential = (text if isinstance(text, str) else "").strip(" \t").partition(" ")
        credential = credential.strip(" ")
        if scheme.lower() != "bearer" or not credential or " " in credential:
            _refuse("authorization must be of the form 'Bearer CREDENTIAL': no other scheme is served")
        if len(credential) > MAX_CREDENTIAL:
            _refuse(f"the credential in authorization is longer than {MAX_CREDENTIAL} characters")
        digest = _digest(credential)
        # Every peer is compared, whoever matches: the time taken says nothing.
        found = [caller for known, caller in self._peers if hmac.compare_digest(known, digest)]
        if found:
            return found[0]
        device = self._device(digest)
        if device is None:
            _refuse("the credential in authorization is of no peer gateway and no enrolled device here")
        return Caller(device=device.name, origin=Origin(device.place.site, device.place.device))


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()


def _refuse(message: str) -> NoReturn:
    raise Refusal(Reason.UNAUTHENTICATED, message)
