"""What devices and gateways are to gather of the models that are watched."""

from __future__ import annotations

from collections.abc import Sequence

from edgewire.signals import CONFIDENCE, default_edges
from gateway.control.update_ports import Releases
from gateway.core.config import UpdateConfig
from gateway.core.release import GatherOrder


def gather_orders(updates: Sequence[UpdateConfig], releases: Releases) -> dict[str, GatherOrder]:
    """By model. Values are counted in the bins of the release that stands: of the signal that is watched, and
    of confidence, by which rollouts are judged."""
    found: dict[str, GatherOrder] = {}
    for update in updates:
        version = releases.standing().get(update.model)
        if version is None:
            continue
        reference = releases.get(update.model, version).reference
        edges = {
            name: reference[name].edges if name in reference else default_edges(name)
            for name in (update.drift.signal, CONFIDENCE)
        }
        train, samples = update.train, update.samples
        if train is None or samples.collect == "none":
            found[update.model] = GatherOrder(edges)
        else:
            found[update.model] = GatherOrder(
                edges, train.location.place, samples.max_per_day, samples.confidence_below
            )
    return found
