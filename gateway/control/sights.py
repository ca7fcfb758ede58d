"""What devices report and what was counted, as a rollout's machine sees it."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.control.ports import Fit, Fits
from gateway.core.fleet import DeviceReport
from gateway.core.release import Release
from gateway.rollout.messages import Sight

FAILED = "failed"


class Sights:
    """Of one rollout. What was made of a report is kept until another one comes: most devices say nothing
    new from one look to the next."""

    def __init__(self, fits: Fits) -> None:
        self._fits = fits
        self._release: Release | None = None
        self._known: dict[str, tuple[DeviceReport, Sight | None]] = {}

    def of(self, release: Release, devices: Iterable[DeviceReport]) -> dict[str, Sight]:
        """The devices of the release's model."""
        known = self._known if release is self._release else {}
        self._release, self._known = release, {}
        for device in devices:
            entry = known.get(device.name)
            if entry is None or entry[0] is not device:
                fit = self._fits(release, device)
                entry = device, None if fit is None else _sight(release, device, fit)
            self._known[device.name] = entry
        return {name: sight for name, (_, sight) in self._known.items() if sight is not None}


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
