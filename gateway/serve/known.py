"""What counting reports must know of releases."""

from __future__ import annotations

from edgewire.signals import SIGNALS
from gateway.analytics.windows import Edges
from gateway.control.releases import Releases
from oip.errors import OipError


class KnownReleases:
    """`analytics.windows.Known` over control's releases."""

    def __init__(self, releases: Releases) -> None:
        self._releases = releases

    def edges(self, model: str, version: str) -> Edges | None:
        try:
            release = self._releases.get(model, version)
        except OipError:
            return None
        return {name: release.edges(name) for name in SIGNALS}
