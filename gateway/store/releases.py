"""Releases and what stands, as rows. A release is a JSON document, so that a new fact about one needs no
new column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.release import Blob, Key, Reference, Release, ReleaseFile, Stage
from gateway.store.tables import releases, standing


async def read_releases(connection: AsyncConnection) -> dict[Key, Release]:
    """Every release, by model and then by order. Raises SQLAlchemyError, as everything here does."""
    rows = (await connection.execute(select(releases))).mappings().all()
    found = [_release(row["model"], row["version"], row["document"]) for row in rows]
    found.sort(key=lambda release: (release.model, release.order, release.version))
    return {(release.model, release.version): release for release in found}


async def read_standing(connection: AsyncConnection) -> dict[str, str]:
    """The version that stands, by model."""
    rows = (await connection.execute(select(standing).order_by(standing.c.model))).mappings().all()
    return {row["model"]: row["version"] for row in rows}


async def write_release(connection: AsyncConnection, release: Release) -> None:
    """In place of the one of the same model and version, if there is one."""
    where = (releases.c.model == release.model) & (releases.c.version == release.version)
    await connection.execute(delete(releases).where(where))
    row = {"model": release.model, "version": release.version, "document": _document(release)}
    await connection.execute(insert(releases).values(row))


async def write_standing(connection: AsyncConnection, model: str, version: str) -> None:
    await connection.execute(delete(standing).where(standing.c.model == model))
    await connection.execute(insert(standing).values(model=model, version=version))


def _document(release: Release) -> dict[str, Any]:
    return {
        "files": {slot: _plain_file(file) for slot, file in release.files.items()},
        "order": release.order,
        "stage": release.stage.value,
        "places": release.places,
        "reference": {
            name: {"edges": list(one.edges), "counts": list(one.counts)}
            for name, one in release.reference.items()
        },
        "metrics": dict(release.metrics),
        "source": release.source,
    }


def _plain_file(file: ReleaseFile) -> dict[str, Any]:
    return {
        "format": file.format,
        "digest": file.blob.digest,
        "size": file.blob.size,
        "golden": None if file.golden is None else {"digest": file.golden.digest, "size": file.golden.size},
    }


def _release(model: str, version: str, document: object) -> Release:
    told = cast("Mapping[str, Any]", document)
    return Release(
        model=model,
        version=version,
        files={slot: _file(file) for slot, file in told["files"].items()},
        order=told["order"],
        stage=Stage(told["stage"]),
        places=told["places"],
        reference={
            name: Reference(tuple(one["edges"]), tuple(one["counts"]))
            for name, one in told["reference"].items()
        },
        metrics=told["metrics"],
        source=told["source"],
    )


def _file(told: Mapping[str, Any]) -> ReleaseFile:
    golden = told["golden"]
    return ReleaseFile(
        told["format"],
        Blob(told["digest"], told["size"]),
        None if golden is None else Blob(golden["digest"], golden["size"]),
    )
