"""What of a report may be here, and go on to where a model is trained. Pure.

Devices and gateways ask the wall before they count values or keep a request; this asks again, of the
configuration that runs now, and whatever is not clearly allowed is refused.
"""

from __future__ import annotations

from edgewire.allowed import AllowedSet
from gateway.core.config import Config
from gateway.core.config.updates import UpdateConfig
from gateway.core.place import Origin, Place
from gateway.decide import compiled

GATEWAY_SOURCE = "gateway:"
"""How the names of sources begin that are replicas of this gateway. What comes from anything else comes
from a device."""


class Consent:
    """`gateway` is where reports are kept: the gateway's own place."""

    def __init__(self, config: Config) -> None:
        self._tables = compiled(config)
        self._updates = {update.model: update for update in config.updates}
        self._called: dict[str, str] = {}
        for model in config.models:
            for variant in model.variants:
                if variant.endpoint in self._tables.groups:
                    self._called.setdefault(variant.model or model.name, model.name)

    @property
    def gateway(self) -> Place:
        return self._tables.gateway

    def model_of(self, source: str, name: str) -> str | None:
        """The gateway's name for what a source calls a model; None for one that is not configured."""
        if not source.startswith(GATEWAY_SOURCE):
            return self._called.get(name)
        return name if name in self._tables.models else None

    def origin_of(self, source: str, place: Place) -> Origin:
        """Where the data of a report comes from, as far as control knows it. A gateway reports of places
        that answered; what it reports was asked of the gateway."""
        at = self.gateway if source.startswith(GATEWAY_SOURCE) else place
        return Origin(at.site, at.device)

    def may_count(self, model: str, origin: Origin) -> bool:
        """Whether values of the model's requests may be counted here."""
        return self._of(model, origin).allows(self.gateway)

    def may_keep(self, model: str, origin: Origin, allowed: AllowedSet) -> bool:
        """Whether a request that may go to the `allowed` places may be kept here as a sample: the operator
        wants samples, and both the request's own set and the model's class allow this place and the one
        where it is to be trained."""
        training = self.training(model)
        if training is None:
            return False
        both = self._of(model, origin).narrowed(allowed)
        return both.allows(self.gateway) and both.allows(training)

    def may_go(self, model: str, origin: Origin, allowed: AllowedSet, place: Place) -> bool:
        """Whether a sample that is kept may go to a place: where it is trained, or a teacher's."""
        return self.left(model, origin, allowed).allows(place)

    def left(self, model: str, origin: Origin, allowed: AllowedSet) -> AllowedSet:
        """What the model's class leaves of a request's own set."""
        return self._of(model, origin).narrowed(allowed)

    def training(self, model: str) -> Place | None:
        """Where the model's samples are trained on; None where none are wanted."""
        update = self._updates.get(model)
        if update is None or update.train is None or update.samples.collect == "none":
            return None
        return update.train.location.place

    def update_of(self, model: str) -> UpdateConfig | None:
        return self._updates.get(model)

    def _of(self, model: str, origin: Origin) -> AllowedSet:
        known = self._tables.models.get(model)
        if known is None:
            return AllowedSet(())
        return self._tables.wall((known.privacy,), origin).allowed
