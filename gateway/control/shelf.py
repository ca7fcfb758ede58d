"""What may become of releases. PURE: a shelf and a wish in, the new shelf out, or Refused.

    candidate ──judged──> passed | refused ──stood──> stands
        └───────────────────┴── withdrawn: offered to nobody, unless it stands

A release's files never change. Its order never falls: it grows when devices are to return to it from a
newer one, so that they can tell an order of today from an old one that somebody replays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.core.release import ANYWHERE, Key, Reference, Release, ReleaseFile, Stage
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason


def refused(text: str) -> OipError:
    """For a wish that what is there forbids."""
    return OipError(Reason.CONFLICT, text)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Every release, and by model the version that stands."""

    releases: Mapping[Key, Release] = field(default_factory=dict[Key, Release])
    standing: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, model: str) -> tuple[Release, ...]:
        """By order."""
        found = [release for release in self.releases.values() if release.model == model]
        return tuple(sorted(found, key=lambda release: release.order))

    def get(self, model: str, version: str) -> Release:
        """Raises OipError NOT_FOUND."""
        found = self.releases.get((model, version))
        if found is None:
            raise OipError(Reason.NOT_FOUND, f"model {shown(model)} has no release {shown(version)}")
        return found

    def with_release(self, release: Release) -> Shelf:
        return replace(self, releases={**self.releases, (release.model, release.version): release})


def next_version(shelf: Shelf, model: str) -> str:
    """One more than the highest there is."""
    return str(max((int(release.version) for release in shelf.of(model)), default=0) + 1)


def _top(shelf: Shelf, model: str) -> int:
    return max((release.order for release in shelf.of(model)), default=0)


def added(
    shelf: Shelf,
    model: str,
    version: str,
    files: Mapping[str, ReleaseFile],
    *,
    stage: Stage = Stage.CANDIDATE,
    places: str = ANYWHERE,
    reference: Mapping[str, Reference] | None = None,
    metrics: Mapping[str, float] | None = None,
    source: str = "file",
) -> Shelf:
    """With a new release. The same version with the same files changes nothing; with others it is refused."""
    known = shelf.releases.get((model, version))
    if known is not None:
        if dict(known.files) != dict(files) or known.places != places:
            raise refused(
                f"version {version} of {shown(model)} is there with other files: a version never changes, so "
                "give the next one"
            )
        return shelf
    order = _top(shelf, model) + 1
    return shelf.with_release(
        Release(model, version, dict(files), order, stage, places, reference or {}, metrics or {}, source)
    )


def joined(shelf: Shelf, model: str, version: str, files: Mapping[str, ReleaseFile]) -> Shelf:
    """A release made of the configuration's files gets those of endpoints that are new in it."""
    known = shelf.get(model, version)
    return shelf.with_release(replace(known, files={**files, **known.files}))


def judged(
    shelf: Shelf, model: str, version: str, passed: bool, metrics: Mapping[str, float] | None = None
) -> Shelf:
    known = _offered(shelf, model, version)
    if not passed and shelf.standing.get(model) == version:
        raise refused(
            f"version {version} of {shown(model)} stands: make another one stand before it is refused"
        )
    stage = Stage.PASSED if passed else Stage.REFUSED
    return shelf.with_release(replace(known, stage=stage, metrics={**known.metrics, **(metrics or {})}))


def stood(shelf: Shelf, model: str, version: str) -> Shelf:
    """With a version that stands. One older than what stood is ordered back."""
    known = _servable(shelf, model, version)
    before = shelf.releases.get((model, shelf.standing.get(model, "")))
    if before is not None and known.order < before.order:
        shelf = ordered_back(shelf, model, version)
    return replace(shelf, standing={**shelf.standing, model: version})


def ordered_back(shelf: Shelf, model: str, version: str) -> Shelf:
    """With an order of this version that is above that of every other one of the model."""
    known = _servable(shelf, model, version)
    others = [release.order for release in shelf.of(model) if release.version != version]
    if all(known.order > order for order in others):
        return shelf
    return shelf.with_release(replace(known, order=_top(shelf, model) + 1))


def withdrawn(shelf: Shelf, model: str, version: str) -> Shelf:
    known = shelf.get(model, version)
    if shelf.standing.get(model) == version:
        raise refused(f"version {version} of {shown(model)} stands: make another one stand first")
    return shelf.with_release(replace(known, stage=Stage.WITHDRAWN))


def levelled(shelf: Shelf, model: str, pinned: frozenset[str]) -> Shelf:
    """What stands and what the configuration pins are both wanted now, so that a device may go from each to
    each."""
    wanted = [
        release
        for release in shelf.of(model)
        if release.version in pinned | {shelf.standing.get(model, "")}
        and release.stage not in (Stage.WITHDRAWN, Stage.CANDIDATE)
    ]
    top = max((release.order for release in wanted), default=0)
    for release in wanted:
        if release.order < top:
            shelf = shelf.with_release(replace(release, order=top))
    return shelf


def _offered(shelf: Shelf, model: str, version: str) -> Release:
    known = shelf.get(model, version)
    if known.stage is Stage.WITHDRAWN:
        raise refused(f"version {version} of {shown(model)} is withdrawn: release its files as a new version")
    return known


def _servable(shelf: Shelf, model: str, version: str) -> Release:
    known = _offered(shelf, model, version)
    if known.stage is Stage.CANDIDATE:
        raise refused(f"version {version} of {shown(model)} has not been through its gate yet")
    return known
