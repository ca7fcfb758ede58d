"""Control's part in models: their releases, told together with what runs, pushed, and held against devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gateway.admin.plane import ReleaseQuery
from gateway.control.ports import Fit
from gateway.control.releases import Releases
from gateway.core.config import Config
from gateway.core.fleet import DeviceReport
from gateway.core.release import Blob, Release, ReleaseFile
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason


class Models:
    """What operators see and do about releases. `devices` tells of every enrolled one, and raises OipError
    where that is not known; `fit` says how one stands to a release."""

    def __init__(
        self,
        config: Config,
        releases: Releases,
        devices: Callable[[], Awaitable[Sequence[DeviceReport]]],
        fit: Callable[..., Fit | None],
    ) -> None:
        self._names = [model.name for model in config.models]
        self._releases = releases
        self._devices = devices
        self._fit = fit

    def with_releases(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The models as the data plane tells them, each with its releases by order and with where those differ
        from the configuration's files."""
        standing = self._releases.standing()
        return [
            {
                **entry,
                "standing": standing.get(entry["name"]),
                "releases": [
                    release_view(release, release.version == standing.get(release.model))
                    for release in self._releases.of(entry["name"])
                ],
                "differences": [
                    {"version": told.version, "endpoint": told.endpoint or None, "text": told.text}
                    for told in self._releases.differences()
                    if told.model == entry["name"]
                ],
            }
            for entry in entries
        ]

    async def upload(self, content: bytes) -> dict[str, Any]:
        blob = await self._releases.upload(content)
        return {"digest": blob.digest, "size": blob.size}

    async def push(self, model: str, query: ReleaseQuery) -> dict[str, Any]:
        """A new candidate of files that were uploaded."""
        files: dict[str, tuple[str, Blob, Blob | None]] = {}
        for slot, file in query.files.items():
            golden = None if file.golden is None else await self._uploaded(file.golden)
            files[slot] = (file.format, await self._uploaded(file.digest), golden)
        release = await self._releases.add(model, files, source="push", version=query.version)
        return release_view(release, self._releases.standing().get(model) == release.version)

    async def compat(self, model: str | None, version: str | None) -> list[dict[str, Any]]:
        """Every device of a group of each model against its release: the one of this version, else the one that
        stands. Raises OipError."""
        if model is not None and model not in self._names:
            raise OipError(Reason.UNKNOWN_MODEL, f"the configuration has no model {shown(model)}")
        wanted, devices = self._wanted(model, version), await self._devices()
        return [
            {
                "model": release.model,
                "version": release.version,
                "device": device.name,
                "site": device.place.site,
                "connected": device.connected,
                "ok": not fit.why_not,
                "missing": fit.why_not or None,
            }
            for release in wanted
            for device in devices
            if (fit := self._fit(release, device, pinned=True)) is not None
        ]

    def _wanted(self, model: str | None, version: str | None) -> list[Release]:
        if version is not None:
            if model is None:
                raise OipError(
                    Reason.MALFORMED, "a version needs the model that it is of: give model as well"
                )
            return [self._releases.get(model, version)]
        standing = self._releases.standing()
        names = self._names if model is None else [model]
        return [self._releases.get(name, standing[name]) for name in names if name in standing]

    async def _uploaded(self, digest: str) -> Blob:
        found = await self._releases.uploaded(digest)
        if found is None:
            raise OipError(
                Reason.NOT_FOUND, f"no artifact {shown(digest)} is stored: upload it by PUT /api/v1/artifacts"
            )
        return found


def release_view(release: Release, stands: bool) -> dict[str, Any]:
    """A release as JSON-ready data."""
    return {
        "version": release.version,
        "stage": release.stage.value,
        "order": release.order,
        "standing": stands,
        "source": release.source,
        "places": release.places or None,
        "metrics": dict(release.metrics),
        "files": {slot: _file_view(file) for slot, file in release.files.items()},
    }


def _file_view(file: ReleaseFile) -> dict[str, Any]:
    return {
        "format": file.format,
        **_blob_view(file.blob),
        "golden": None if file.golden is None else _blob_view(file.golden),
    }


def _blob_view(blob: Blob) -> dict[str, Any]:
    return {"digest": blob.digest, "size": blob.size}
