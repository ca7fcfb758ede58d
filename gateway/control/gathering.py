"""What devices and gateways are to gather of the models that are watched."""

from __future__ import annotations

from collections.abc import Sequence

from edgewire.signals import CONFIDENCE
from gateway.control.update_ports import Releases
from gateway.core.config import UpdateConfig
from gateway.core.release import GatherOrder


def gather_orders(updates: Sequence[UpdateConfig], releases: Releases) -> dict[str, GatherOrder]:
    """By model: the signal that is watched, and confidence, by which rollouts are judged."""
    found: dict[str, GatherOrder] = {}
    for update in updates:
        if update.model not in releases.standing():
            continue
        signals = tuple(dict.fromkeys((update.drift.signal, CONFIDENCE)))
        train, samples = update.train, update.samples
        if train is None or samples.collect == "none":
            found[update.model] = GatherOrder(signals)
        else:
            found[update.model] = GatherOrder(
                signals, train.location.place, samples.max_per_day, samples.confidence_below
            )
    return found
