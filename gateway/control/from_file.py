"""Which releases a configuration's files make: version 1, or the one that a variant names.

From then on the store is the truth. A file that is other than the release of its version is told, and not
taken: whoever changed it means a new version, which is pushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.control.shelf import Shelf, added, joined, levelled, stood
from gateway.core.config import Config, ModelConfig, VariantConfig
from gateway.core.config.models import FIRST_VERSION
from gateway.core.release import Blob, Reference, ReleaseFile, Stage
from gateway.edgehub.desired import offers
from gateway.edgehub.groups import EdgeConfig
from gateway.store.artifacts import Artifact, load_artifact
from gateway.store.blobs import BlobStore
from gateway.store.references import read_reference

TFLITE_MAGIC = b"TFL3"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where what is released is not what the configuration names. `endpoint` is "" where it is about the model as a
    whole; `text` is a sentence."""

    model: str
    version: str
    endpoint: str
    text: str


async def taken_in(config: Config, shelf: Shelf, blobs: BlobStore) -> tuple[Shelf, tuple[Difference, ...]]:
    """The shelf with what the configuration names and it lacks, and where the two differ. Content of new
    files, and of known ones that the store has lost, is in the store by then. Raises ArtifactError, OSError
    and BlobError."""
    found: list[Difference] = []
    for model in config.models:
        for version, variants in _by_version(model).items():
            files: dict[str, ReleaseFile] = {}
            for variant in variants:
                look = await _looked_at(config, shelf, model, version, variant)
                if isinstance(look, Difference):
                    found.append(look)
                    continue
                await _stored(look.artifact, look.file, blobs)
                if look.new:
                    files[variant.endpoint] = look.file
            if (model.name, version) not in shelf.releases and files:
                reference = await asyncio.to_thread(_reference_of, variants)
                shelf = added(shelf, model.name, version, files, stage=Stage.PASSED, reference=reference)
            elif files:
                shelf = joined(shelf, model.name, version, files)
        shelf = _with_standing(shelf, model)
        shelf = levelled(shelf, model.name, _pinned(config, model.name))
        found += _superseded(shelf, model)
    found += [difference async for difference in _lost(shelf, blobs)]
    return shelf, tuple(found)


async def differing(config: Config, shelf: Shelf) -> tuple[Difference, ...]:
    """Where what is on the shelf is not what the configuration names; nothing is taken in, and the store is not
    asked. Raises ArtifactError and OSError."""
    found: list[Difference] = []
    for model in config.models:
        for version, variants in _by_version(model).items():
            looks = [await _looked_at(config, shelf, model, version, variant) for variant in variants]
            found += [look for look in looks if isinstance(look, Difference)]
        found += _superseded(shelf, model)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Look:
    """A variant's file as it lies there; `new`: its release has it not yet."""

    artifact: Artifact
    file: ReleaseFile
    new: bool


async def _looked_at(
    config: Config, shelf: Shelf, model: ModelConfig, version: str, variant: VariantConfig
) -> _Look | Difference:
    """The file of a variant, or why it is not taken."""
    assert variant.artifact is not None
    artifact = await asyncio.to_thread(load_artifact, variant.artifact)
    format = await asyncio.to_thread(_format_of, config, variant, artifact.path)
    known = shelf.releases.get((model.name, version))
    released = None
    if known is not None:
        # A version that was pushed takes no more files, and what it has for the endpoint is the file's match.
        released = known.files.get(variant.endpoint) or (
            None if known.source == "file" else known.file_for(variant.endpoint, format)
        )
        if released is None and known.source != "file":
            text = f"version {version} was released without a file for {variant.endpoint}: {artifact.path.name} is not taken"
            return Difference(model.name, version, variant.endpoint, text)
    named = _as_file(artifact, format)
    if released is not None and (released.blob, released.golden) != (named.blob, named.golden):
        what = (
            artifact.path.name
            if released.blob != named.blob
            else f"the golden vectors of {artifact.path.name}"
        )
        text = (
            f"{what} has changed since it was released as version {version}, and is not taken: push it as a "
            "new version, or put the old file back"
        )
        return Difference(model.name, version, variant.endpoint, text)
    return _Look(artifact, named, released is None)


async def _stored(artifact: Artifact, file: ReleaseFile, blobs: BlobStore) -> None:
    for path, blob in ((artifact.path, file.blob), (artifact.golden, file.golden)):
        if path is not None and blob is not None and not await blobs.has(blob):
            stored = await blobs.put_file(path)
            if stored != blob:
                raise OSError(f"the artifact {path.name} changes while it is read: start the gateway again")


async def _lost(shelf: Shelf, blobs: BlobStore) -> AsyncIterator[Difference]:
    """Releases whose content the store has not."""
    offered = [release for release in shelf.releases.values() if release.stage is not Stage.WITHDRAWN]
    slots = [(release, slot, file) for release in offered for slot, file in release.files.items()]
    wanted = [[file.blob] if file.golden is None else [file.blob, file.golden] for _, _, file in slots]
    there = await asyncio.gather(*(_all_there(blobs, some) for some in wanted))
    for (release, slot, _), whole in zip(slots, there, strict=True):
        if not whole:
            text = (
                f"the file of version {release.version} for {slot} is not in the artifact store: copy it back"
            )
            yield Difference(release.model, release.version, slot, text)


async def _all_there(blobs: BlobStore, wanted: list[Blob]) -> bool:
    return all([await blobs.has(blob) for blob in wanted])


def _by_version(model: ModelConfig) -> dict[str, list[VariantConfig]]:
    """The variants with a file, by the version that their files are."""
    found: dict[str, list[VariantConfig]] = {}
    for variant in model.variants:
        if variant.artifact is not None:
            found.setdefault(variant.version or FIRST_VERSION, []).append(variant)
    return found


def _with_standing(shelf: Shelf, model: ModelConfig) -> Shelf:
    """The first version that nothing pins stands at first, else the one that stands first in the file."""
    if model.name in shelf.standing:
        return shelf
    filed = [variant for variant in model.variants if variant.artifact is not None]
    filed.sort(key=lambda variant: variant.version is not None)
    for variant in filed:
        version = variant.version or FIRST_VERSION
        known = shelf.releases.get((model.name, version))
        if known is not None and known.stage in (Stage.PASSED, Stage.REFUSED):
            return stood(shelf, model.name, version)
    return shelf


def _pinned(config: Config, model: str) -> frozenset[str]:
    """Versions that devices are to run whatever stands."""
    pinned = {offer.pinned for offer in offers(config) if offer.model == model}
    return frozenset(version for version in pinned if version is not None)


def _superseded(shelf: Shelf, model: ModelConfig) -> Iterator[Difference]:
    stands = shelf.standing.get(model.name)
    follows = any(v.artifact is not None and v.version is None for v in model.variants)
    if stands is not None and stands != FIRST_VERSION and follows:
        text = f"version {stands} stands: the files that the configuration names are version {FIRST_VERSION}"
        yield Difference(model.name, stands, "", text)


def _reference_of(variants: list[VariantConfig]) -> dict[str, Reference]:
    """What lies beside the files; of a signal that several tell of, the first."""
    found: dict[str, Reference] = {}
    for variant in variants:
        if variant.artifact is not None:
            found = {**read_reference(Path(variant.artifact)), **found}
    return found


def _as_file(artifact: Artifact, format: str) -> ReleaseFile:
    golden = None if artifact.golden is None else Blob(artifact.golden_digest, artifact.golden_size)
    return ReleaseFile(format, Blob(artifact.digest, artifact.size), golden)


def _format_of(config: Config, variant: VariantConfig, path: Path) -> str:
    """Devices run nothing but TFLite; a pool may be given it too."""
    if any(isinstance(e, EdgeConfig) and e.name == variant.endpoint for e in config.endpoints):
        return "tflite"
    with path.open("rb") as stream:
        return "tflite" if stream.read(8)[4:] == TFLITE_MAGIC else "onnx"
