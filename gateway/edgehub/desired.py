"""What a device is to run and try: the releases that orders name for the groups that it belongs to.

A device runs one file under one model name. Where two variants name the same model for the same device
and differ, the one that stands first in the file wins (models in their order, then their variants); the
other's version is then not on the device, so that it is not asked for it. `conflicts` finds such pairs
without any device, for `check`.

A release that may not go to a device's place, that the device cannot run, or that has no file for its
group is not for it: it keeps what it runs, as long as that is released and may be there, or runs what stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edgewire.allowed import AllowedSet
from edgewire.targets import target_name
from edgewire.v1 import edge_pb2
from edgewire.wire_places import to_wire
from gateway.compat import Needs, check
from gateway.core.config import Config, ModelConfig, VariantConfig
from gateway.core.place import Origin, Place, PrivacyClass, Tier
from gateway.core.release import Blob, GatherOrder, Orders, Release, ReleaseFile, Stage, signed_slot
from gateway.edgehub.groups import EdgeConfig, may_share_devices, selects
from gateway.policy.privacy import allowed_set, compile_classes
from gateway.registry.devices import Enrolled

FORMAT = "tflite"
"""What devices run."""


class Offer(NamedTuple):
    """A variant that a group's devices are to run. `called`: the model's name on them."""

    group: EdgeConfig
    model: str
    called: str
    variant: VariantConfig

    @property
    def pinned(self) -> str | None:
        """The version that they run whatever stands."""
        return self.variant.version

    @property
    def work(self) -> tuple[object, ...]:
        """What the device would have to do: two offers that agree in this are no conflict."""
        return self.called, self.pinned, self.variant.artifact, self.variant.batching

    def file_of(self, release: Release) -> ReleaseFile | None:
        """What the group's devices would run of a release."""
        file = release.file_for(self.group.name, FORMAT)
        return file if file is not None and file.format == FORMAT else None

    def why_not(
        self, release: Release, place: Place, facts: Mapping[str, str], needs: Mapping[str, Needs]
    ) -> list[str]:
        """Why a device of the group cannot have a release, a clause each; empty where it can. `needs` by
        digest; a file without an entry says of itself on the device why it cannot run."""
        file = self.file_of(release)
        if release.stage is Stage.WITHDRAWN:
            return ["it is withdrawn"]
        if file is None:
            return [f"it has no .tflite file for {self.group.name}"]
        if not release.may_go(place):
            return [f"it may not go to {place}"]
        wanted = needs.get(file.blob.digest)
        return [] if wanted is None else check(wanted, facts)


class Conflict(NamedTuple):
    """Two variants that some device may be asked to run under one name. `first` wins."""

    model: str
    first: str
    second: str

    def __str__(self) -> str:
        return (
            f"devices in both {self.first} and {self.second} can run only one of their files as {self.model!r}: "
            f"the one for {self.first} wins, because it stands first"
        )


@dataclass(frozen=True, slots=True)
class Known:
    """A device as the hub knows it. `running`: version and digest of what serves, by the name that the
    device has for the model; None until it has said so."""

    device: Enrolled
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    running: Mapping[str, tuple[str, str]] | None = None

    @property
    def place(self) -> Place:
        return Place(Tier.DEVICE, site=self.device.site, device=self.device.name)


def offers(config: Config) -> Iterator[Offer]:
    """Every variant with an artifact on an edge endpoint, in the file's order."""
    groups = {e.name: e for e in config.endpoints if isinstance(e, EdgeConfig)}
    for model, variant in _variants(config):
        group = groups.get(variant.endpoint)
        if group is not None and variant.artifact is not None:
            yield Offer(group, model.name, variant.model or model.name, variant)


def device_files(releases: Iterable[Release]) -> set[Blob]:
    """Everything that some device may come to run."""
    return {
        file.blob
        for release in releases
        if release.stage is not Stage.WITHDRAWN
        for file in release.files.values()
        if file.format == FORMAT
    }


class Desires:
    """What devices are to do under one configuration. PURE."""

    def __init__(self, config: Config) -> None:
        self._gateway = config.gateway.location.place
        self._offers = tuple(offers(config))
        classes = compile_classes(config)
        self._classes: dict[str, PrivacyClass] = {
            model.name: classes[model.privacy or config.privacy.default] for model in config.models
        }

    def of(self, known: Known, orders: Orders, needs: Mapping[str, Needs]) -> edge_pb2.Desired | None:
        """Everything that a device is to run, at most one entry a model name, and to try. None while that
        depends on what it runs and it has not said so. `needs` by digest; a file without an entry says of
        itself on the device why it cannot run."""
        desired = edge_pb2.Desired(report_ms=orders.report_ms)
        mine = self._offers_to(known.device.site, known.device.labels)
        for offer in mine:
            wanted = offer.pinned or orders.version_on(offer.model, known.device.name)
            release = _fitting(orders, offer, wanted, known, needs)
            if release is None and known.running is None:
                return None
            release = release or _kept(orders, offer, known) or _standing(orders, offer, known, needs)
            if release is not None:
                entry = desired.models.add()
                _fill(entry, offer, release)
                self._gather(entry, known, orders.gather.get(offer.model), release)
        for model, version in orders.trials.get(known.device.name, ()):
            offer = next((o for o in mine if o.model == model), None)
            tried = None if offer is None else _fitting(orders, offer, version, known, needs, trial=True)
            if offer is not None and tried is not None:
                _fill(desired.trials.add(), offer, tried)
        return desired

    def _offers_to(self, site: str, labels: Mapping[str, str]) -> list[Offer]:
        """What a device is to run, one a name."""
        found: dict[str, Offer] = {}
        for offer in self._offers:
            if selects(offer.group, site, labels):
                found.setdefault(offer.called, offer)
        return list(found.values())

    def _gather(
        self, entry: edge_pb2.DesiredModel, known: Known, order: GatherOrder | None, release: Release
    ) -> None:
        """What is counted of values goes to this gateway, and samples go on to where they are trained on: the
        model's class must allow that for what is asked at the device itself."""
        if order is None:
            return
        allowed = self._allowed(release.model, known)
        try:
            text = allowed.encode()
        except ValueError:
            return
        if not allowed.allows(self._gateway):
            return
        entry.gather.allowed = text
        for name in order.signals:
            entry.gather.signals.add(name=name, edges=release.edges(name))
        if order.training is not None and order.max_per_day > 0 and allowed.allows(order.training):
            entry.gather.samples.training.CopyFrom(to_wire(order.training))
            entry.gather.samples.max_per_day = order.max_per_day
            entry.gather.samples.confidence_below = order.confidence_below

    def _allowed(self, model: str, known: Known) -> AllowedSet:
        return allowed_set([self._classes[model]], Origin(known.device.site, known.device.name))


def conflicts(config: Config) -> Sequence[Conflict]:
    """Pairs of variants of which a device that is in both groups can run only the first."""
    found: list[Conflict] = []
    seen: list[Offer] = []
    for offer in offers(config):
        for earlier in seen:
            if earlier.called != offer.called or earlier.work == offer.work:
                continue
            if may_share_devices(earlier.group, offer.group):
                found.append(Conflict(offer.called, earlier.group.name, offer.group.name))
        seen.append(offer)
    return found


def _variants(config: Config) -> Iterator[tuple[ModelConfig, VariantConfig]]:
    for model in config.models:
        for variant in model.variants:
            yield model, variant


def _fitting(
    orders: Orders,
    offer: Offer,
    version: str | None,
    known: Known,
    needs: Mapping[str, Needs],
    *,
    trial: bool = False,
) -> Release | None:
    """The release of this version, where the device may have it and can run it."""
    release = orders.releases.get((offer.model, version or ""))
    if release is None or (release.stage is Stage.CANDIDATE and not trial):
        return None
    return None if offer.why_not(release, known.place, known.facts, needs) else release


def _kept(orders: Orders, offer: Offer, known: Known) -> Release | None:
    """What the device runs, where it may go on with it. That it can run it is plain."""
    version, digest = (known.running or {}).get(offer.called, ("", ""))
    release = _fitting(orders, offer, version, known, {})
    file = None if release is None else offer.file_of(release)
    return release if file is not None and file.blob.digest == digest else None


def _standing(orders: Orders, offer: Offer, known: Known, needs: Mapping[str, Needs]) -> Release | None:
    """What stands, where what the device was moved to is for nobody any more."""
    return _fitting(orders, offer, offer.pinned or orders.standing.get(offer.model), known, needs)


def _fill(entry: edge_pb2.DesiredModel, offer: Offer, release: Release) -> None:
    file, slot = offer.file_of(release), release.slot_for(offer.group.name, FORMAT)
    assert file is not None
    assert slot is not None
    slot = signed_slot(offer.model, offer.called, slot)
    entry.model, entry.version = offer.called, release.version
    entry.digest, entry.size = file.blob.digest, file.blob.size
    entry.target = target_name(offer.called, release.version, slot)
    if file.golden is not None:
        entry.golden_digest, entry.golden_size = file.golden.digest, file.golden.size
        entry.golden_target = target_name(offer.called, release.version, slot, golden=True)
    if offer.variant.batching is not None:
        entry.batch_max_size = offer.variant.batching.max_size
        entry.batch_delay_ms = offer.variant.batching.delay_ms
