"""What devices report and what was counted, as a rollout's machine sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgewire.signals import CONFIDENCE, default_edges
from gateway.control.ports import Fit, Fits
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release
from gateway.rollout.messages import Sight

FAILED = "failed"


def sights_of(release: Release, devices: Iterable[DeviceReport], fits: Fits) -> dict[str, Sight]:
    """The devices of the release's model."""
    return {
        device.name: _sight(release, device, fit)
        for device in devices
        if (fit := fits(release, device)) is not None
    }


def confidence_edges(release: Release) -> Sequence[float]:
    """Of the bins that a release's confidence is counted in."""
    reference = release.reference.get(CONFIDENCE)
    return default_edges(CONFIDENCE) if reference is None else reference.edges


def _sight(release: Release, device: DeviceReport, fit: Fit) -> Sight:
    """A device has the release when it says that it serves that version with that digest, and failed to
    take it when it says so of that file."""
    site = device.place.site or ""
    report = device.models.get(fit.runs_as)
    if report is None:
        return Sight(site, device.connected, unfit=fit.why_not)
    is_of_it = report.version == release.version and report.digest == fit.digest
    failed = is_of_it and report.state == FAILED
    has_new = report.active_version == release.version and report.active_digest == fit.digest
    return Sight(
        site,
        device.connected,
        report.active_version,
        has_new and not failed,
        (report.reason or "it failed, and does not say why") if failed else "",
        fit.why_not,
    )
