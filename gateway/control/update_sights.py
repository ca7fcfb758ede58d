"""What devices and rollouts report, as an update's machine sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.control.ports import Fit, Fits
from gateway.core.config import Config
from gateway.core.fleet import DeviceReport, TrialReport
from gateway.core.release import Release, Stage
from gateway.edgehub.desired import offers
from gateway.edgehub.groups import selects
from gateway.rollout.loop_messages import FleetSeen, GroupSeen, Progress, RolloutSeen
from gateway.rollout.loop_state import Update
from gateway.rollout.waves import by_lot


def fleet_seen(
    config: Config, state: Update, release: Release, devices: Sequence[DeviceReport], fits: Fits
) -> FleetSeen:
    """The devices of every group that is to run the release. Who is asked first is drawn by lot, so that it
    is not the same one at every update."""
    able: dict[str, list[str]] = {}
    connected: dict[str, list[str]] = {}
    reports: dict[str, dict[str, TrialReport]] = {}
    for device, group, fit in _fitting(config, release, devices, fits):
        if fit.why_not:
            continue
        able.setdefault(group, []).append(device.name)
        if device.connected:
            connected.setdefault(group, []).append(device.name)
        report = device.trials.get((fit.runs_as, release.version))
        if report is not None and report.digest == fit.digest:
            reports.setdefault(group, {})[device.name] = report
    return FleetSeen(
        {
            group: GroupSeen(
                len(names), tuple(by_lot(state.id, connected.get(group, ()))), reports.get(group, {})
            )
            for group, names in able.items()
        }
    )


def why_not(config: Config, release: Release, devices: Sequence[DeviceReport], fits: Fits) -> dict[str, str]:
    """Every device that is to run the release, and why it cannot, "" for one that can."""
    return {device.name: fit.why_not for device, _, fit in _fitting(config, release, devices, fits)}


def worst_of(state: Update) -> tuple[str, TrialReport | None]:
    """The trial that speaks most against the release, and its device: one that did not work, else the one
    that took the longest against what serves there; ("", None) without a trial."""
    told = [(trial.device, trial.report) for trial in state.trials if trial.report is not None]
    return max(told, key=lambda entry: _badness(entry[1]), default=("", None))


def _badness(report: TrialReport) -> tuple[bool, float, float]:
    ratio = report.p50_ms / report.active_p50_ms if report.active_p50_ms > 0 else 0.0
    return report.state != "active", ratio, report.p50_ms


def rollout_seen(
    state: Update, views: Sequence[Mapping[str, Any]], release: Release, stands: bool
) -> RolloutSeen:
    """The rollout of an update's release, whoever began it, as gateway.rollout.view tells it (the newest
    first). Where none is remembered, what became of the release says how it ended."""
    view = next((v for v in views if (v["model"], v["to"]) == (state.model, state.version)), None)
    if view is None:
        if stands:
            return RolloutSeen("", Progress.DONE)
        if release.stage is Stage.WITHDRAWN:
            return RolloutSeen("", Progress.UNDONE, f"Version {release.version} is withdrawn.")
        return RolloutSeen("", Progress.NONE)
    if view["open"]:
        return RolloutSeen(view["id"], Progress.OPEN, view["waits_for"] or f"its rollout is {view['phase']}")
    if view["outcome"] == "done":
        return RolloutSeen(view["id"], Progress.DONE)
    return RolloutSeen(view["id"], Progress.UNDONE, view["cause"] or "")


def orders(states: Sequence[Update]) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """What each device is to try, as model and version."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for state in states:
        for trial in state.trying:
            found[trial.device] = (*found.get(trial.device, ()), (state.model, state.version))
    return found


def _fitting(
    config: Config, release: Release, devices: Sequence[DeviceReport], fits: Fits
) -> list[tuple[DeviceReport, str, Fit]]:
    """Devices that are to run the release, each with the first group that it is in."""
    groups = [o.group for o in offers(config) if o.model == release.model and o.variant.version is None]
    found: list[tuple[DeviceReport, str, Fit]] = []
    for device in devices:
        site, labels = device.place.site or "", device.labels
        group = next((group.name for group in groups if selects(group, site, labels)), None)
        fit = fits(release, device) if group is not None else None
        if group is not None and fit is not None:
            found.append((device, group, fit))
    return found
