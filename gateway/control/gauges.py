"""What control tells the data plane's metrics, so that one scrape has everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.control.watches import Watch
from gateway.core.fleet import DeviceReport
from gateway.telemetry import names
from gateway.telemetry.metrics import ToldGauge

STATES = ("waiting", "moving", "confirmed", "failed", "returned", "excluded")
"""Of a rollout's devices, as gateway.rollout.view counts them."""


def gauges(
    watches: Mapping[str, Watch], rollouts: Sequence[Mapping[str, Any]], devices: Iterable[DeviceReport]
) -> list[ToldGauge]:
    """Of rollouts (the newest first) those that are open, and of each model the last."""
    rows: list[ToldGauge] = [
        (names.DRIFT.name, (model, watch.signal), watch.drift.score)
        for model, watch in watches.items()
        if watch.drift.score is not None
    ]
    last: set[str] = set()
    for view in rollouts:
        if view["open"] or view["model"] not in last:
            rows += [
                (names.ROLLOUT_DEVICES.name, (view["id"], state), view["devices"][state]) for state in STATES
            ]
        last.add(view["model"])
    spooled = sum(device.spooled for device in devices if device.connected)
    return [*rows, (names.SPOOL_RECORDS.name, (), spooled)]
