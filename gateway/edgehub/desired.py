"""What a device is to run: the variants with an artifact of every group that it belongs to.

A device runs one file under one model name. Where two variants name the same model for the same device
and differ, the one that stands first in the file wins (models in their order, then their variants); the
other's version is then not on the device, so that it is not asked for it. `conflicts` finds such pairs
without any device, for `check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from edgewire.v1 import edge_pb2
from gateway.core.config import Config, ModelConfig, VariantConfig
from gateway.core.config.models import FIRST_VERSION
from gateway.edgehub.groups import EdgeConfig, may_share_devices, selects
from gateway.edgehub.ports import ArtifactFile

"""Of a variant with an artifact and no version."""


class Offer(NamedTuple):
    """A variant that a group's devices are to run, as they are to call it."""

    group: EdgeConfig
    model: str
    version: str
    variant: VariantConfig

    @property
    def work(self) -> tuple[object, ...]:
        """What the device would have to do: two offers that agree in this are no conflict."""
        return self.model, self.version, self.variant.artifact, self.variant.batching


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


def offers(config: Config) -> Iterator[Offer]:
    """Every variant with an artifact on an edge endpoint, in the file's order."""
    groups = {e.name: e for e in config.endpoints if isinstance(e, EdgeConfig)}
    for model, variant in _variants(config):
        group = groups.get(variant.endpoint)
        if group is not None and variant.artifact is not None:
            yield Offer(group, variant.model or model.name, variant.version or FIRST_VERSION, variant)


def desired_of(
    config: Config, artifacts: Mapping[str, ArtifactFile], site: str, labels: Mapping[str, str]
) -> tuple[edge_pb2.DesiredModel, ...]:
    """The desired state of a device enrolled for `site` with `labels`, at most one entry a model name,
    in the file's order. `artifacts` holds every artifact of an edge variant by its path."""
    found: dict[str, edge_pb2.DesiredModel] = {}
    for offer in offers(config):
        if offer.model not in found and selects(offer.group, site, labels):
            assert offer.variant.artifact is not None
            found[offer.model] = _message(offer, artifacts[offer.variant.artifact])
    return tuple(found.values())


def conflicts(config: Config) -> Sequence[Conflict]:
    """Pairs of variants of which a device that is in both groups can run only the first."""
    found: list[Conflict] = []
    seen: list[Offer] = []
    for offer in offers(config):
        for earlier in seen:
            if earlier.model != offer.model or earlier.work == offer.work:
                continue
            if may_share_devices(earlier.group, offer.group):
                found.append(Conflict(offer.model, earlier.group.name, offer.group.name))
        seen.append(offer)
    return found


def _variants(config: Config) -> Iterator[tuple[ModelConfig, VariantConfig]]:
    for model in config.models:
        for variant in model.variants:
            yield model, variant


def _message(offer: Offer, artifact: ArtifactFile) -> edge_pb2.DesiredModel:
    message = edge_pb2.DesiredModel(
        model=offer.model, version=offer.version, digest=artifact.digest, size=artifact.size
    )
    if artifact.golden is not None:
        message.golden_digest = artifact.golden_digest
        message.golden_size = artifact.golden_size
    if offer.variant.batching is not None:
        message.batch_max_size = offer.variant.batching.max_size
        message.batch_delay_ms = offer.variant.batching.delay_ms
    return message
