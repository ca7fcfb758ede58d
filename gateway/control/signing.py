"""The signed metadata about released artifacts, by The Update Framework: what devices trust.

Four roles, each with an Ed25519 key of its own in `keys/` of the state directory. root names the keys of
all; its own key is needed only for a new root, and may be kept elsewhere in between. targets lists the
files, snapshot the version of targets, timestamp the version of snapshot.

The targets are a function of the releases, so everything here can be made again at any time. Each file
has its version in its name and is written before what leads to it, `timestamp.json` last: a reader at any
moment finds a whole, consistent state, and so does whoever goes on after a kill. Versions only grow, also
where the store was emptied or is another one: the last is noted beside the keys first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.exceptions import StorageError
from securesystemslib.signer import CryptoSigner  # pyright: ignore[reportPrivateImportUsage]
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    Metadata,
    MetaFile,  # pyright: ignore[reportPrivateImportUsage]
    Root,  # pyright: ignore[reportPrivateImportUsage]
    Snapshot,  # pyright: ignore[reportPrivateImportUsage]
    TargetFile,  # pyright: ignore[reportPrivateImportUsage]
    Targets,  # pyright: ignore[reportPrivateImportUsage]
    Timestamp,  # pyright: ignore[reportPrivateImportUsage]
)
from tuf.api.serialization.json import JSONSerializer

from edgewire.targets import target_name
from gateway.core.release import ANYWHERE, Blob, Release, ReleaseFile, Stage
from gateway.store.blobs import HASH, BlobStore
from gateway.store.whole import write_whole

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = Root.type, Targets.type, Snapshot.type, Timestamp.type
ROLES = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
DAY_S = 86_400.0
LIFE_S = {TIMESTAMP: DAY_S, SNAPSHOT: 7 * DAY_S, TARGETS: 90 * DAY_S, ROOT: 365 * DAY_S}
"""How long each role's file is good for. It is signed anew when half of that is over."""
KEYS = "keys"
VERSIONS = "versions.json"
LATEST_ROOT = "root.json"
"""A copy of the newest N.root.json, for devices that enrol."""
KEPT = 16
"""So many older files of snapshot and targets stay for readers that are on their way."""
Named = Callable[[Release, str], Iterable[tuple[str, str]]]
"""A release and a slot -> the model and slot that its file's targets are named by."""
logger = logging.getLogger(__name__)


class SigningError(RuntimeError):
    """The keys or the metadata cannot be used. One sentence that says what to do."""


def as_named(release: Release, slot: str) -> Iterable[tuple[str, str]]:
    """Targets named as the release is."""
    return ((release.model, slot),)


class Signing:
    """Keys and metadata of one gateway. `named` tells by which names devices know a release's file;
    `wall` gives seconds since the epoch. Everything may raise BlobError or SigningError."""

    def __init__(
        self,
        blobs: BlobStore,
        state_dir: Path,
        named: Named = as_named,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._blobs = blobs
        self._keys = state_dir.absolute() / KEYS
        self._named = named
        self._wall = wall
        self._turn = asyncio.Lock()
        self._signers: dict[str, CryptoSigner] = {}
        self._root: Metadata[Root] | None = None
        self._now: dict[str, Metadata[Any]] = {}
        """The newest file of each role but root that readers are led to."""
        self._versions: dict[str, int] = {}
        self._warned_at = float("-inf")

    async def start(self) -> None:
        """Read keys and metadata, and make them where there are none yet. Raises SigningError for a key
        that is lost or is not the one that the root names."""
        async with self._turn:
            self._versions = await asyncio.to_thread(_read_versions, self._keys)
            used = (self._keys / f"{TIMESTAMP}.pem").exists()
            self._root = await self._stored_root()
            if self._root is None:
                await self._found()
            else:
                await asyncio.to_thread(self._load_keys, self._root.signed)
            await self._keep_copy()
            await self._read_now()
            if used and not self._now:
                # versions.json may be an old copy: the seconds since 1970 are above what was ever counted.
                at = int(self._wall())
                self._versions = {role: max(self._versions.get(role, 0), at) for role in ROLES}

    def root(self) -> bytes:
        """The newest root, as devices get it when they enrol."""
        assert self._root is not None
        return self._root.to_bytes()

    async def publish(self, releases: Iterable[Release]) -> None:
        """Make the metadata say what the releases are now. The same again writes nothing. Raised in the
        middle, or killed, it has changed nothing that readers see; call it again."""
        wanted = _targets(releases, self._named)
        async with self._turn:
            await self._bring_up(wanted, self._wall())

    async def keep(self, now: float) -> None:
        """Sign anew what has used up half of its time; to be called every few minutes. `now` as of `wall`."""
        async with self._turn:
            if _is_old(self._signed_root, now, ROOT):
                await self._renew_root(now)
            if (found := self._now.get(TARGETS)) is not None:
                await self._bring_up(found.signed.targets, now)

    @property
    def _signed_root(self) -> Root:
        assert self._root is not None
        return self._root.signed

    async def _bring_up(self, wanted: Mapping[str, TargetFile], now: float) -> None:
        """Write whichever of the three files is not as it should be, from the ground up."""
        targets = self._now.get(TARGETS)
        if targets is None or targets.signed.targets != wanted or _is_old(targets.signed, now, TARGETS):
            targets = await self._write(TARGETS, Targets(targets=dict(wanted)), now)
        at = targets.signed.version
        snapshot = self._now.get(SNAPSHOT)
        if (
            snapshot is None
            or snapshot.signed.meta["targets.json"].version != at
            or _is_old(snapshot.signed, now, SNAPSHOT)
        ):
            snapshot = await self._write(SNAPSHOT, Snapshot(meta={"targets.json": MetaFile(at)}), now)
        at = snapshot.signed.version
        timestamp = self._now.get(TIMESTAMP)
        led = None if timestamp is None else timestamp.signed.snapshot_meta.version
        if timestamp is None or led != at or _is_old(timestamp.signed, now, TIMESTAMP):
            written = await self._write(TIMESTAMP, Timestamp(snapshot_meta=MetaFile(at)), now)
            self._now = {TARGETS: targets, SNAPSHOT: snapshot, TIMESTAMP: written}
            await self._forget_old()

    async def _write(self, role: str, signed: Any, now: float) -> Metadata[Any]:
        signed.version = self._versions.get(role, 0) + 1
        versions = {**self._versions, role: signed.version}
        await asyncio.to_thread(_write_private, self._keys / VERSIONS, json.dumps(versions).encode())
        self._versions = versions
        signed.expires = _expiry(now, role)
        metadata = Metadata(signed)
        metadata.sign(self._signers[role])
        name = f"{role}.json" if role == TIMESTAMP else f"{signed.version}.{role}.json"
        await self._blobs.put_metadata(name, metadata.to_bytes(JSONSerializer(compact=True)))
        return metadata

    async def _read_now(self) -> None:
        """What the timestamp leads to, as far as it is all there and by the keys of now."""
        self._now = {}
        timestamp = self._trusted(await self._blobs.metadata("timestamp.json"), TIMESTAMP)
        if timestamp is None:
            return
        at = timestamp.signed.snapshot_meta.version
        snapshot = self._trusted(await self._blobs.metadata(f"{at}.snapshot.json"), SNAPSHOT)
        if snapshot is None:
            return
        at = snapshot.signed.meta["targets.json"].version
        targets = self._trusted(await self._blobs.metadata(f"{at}.targets.json"), TARGETS)
        if targets is not None:
            self._now = {TARGETS: targets, SNAPSHOT: snapshot, TIMESTAMP: timestamp}
        for role, metadata in ((TARGETS, targets), (SNAPSHOT, snapshot), (TIMESTAMP, timestamp)):
            if metadata is not None:
                self._versions[role] = max(self._versions.get(role, 0), metadata.signed.version)

    def _trusted(self, raw: bytes | None, role: str) -> Metadata[Any] | None:
        """The file, when it is one of this role and signed by its key."""
        if raw is None:
            return None
        try:
            metadata = _parsed(raw, role)
            self._signed_root.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (SigningError, RepositoryError):
            logger.warning("the %s metadata in the artifact store is not ours: it is made anew", role)
            return None
        return metadata

    async def _found(self) -> None:
        """The first root. The keys are on disk before anything is signed by them."""
        signers = await asyncio.to_thread(self._make_keys)
        root = Root(expires=_expiry(self._wall(), ROOT), consistent_snapshot=True)
        for role in ROLES:
            root.add_key(signers[role].public_key, role)
        self._signers = signers
        await self._write_root(root)

    async def _renew_root(self, now: float) -> None:
        signer = self._signers.get(ROOT)
        if signer is None:
            if now - self._warned_at >= DAY_S:
                self._warned_at = now
                logger.warning(
                    "devices trust this gateway's releases until %s: put keys/root.pem back and start the "
                    "gateway again, and it signs a new root",
                    self._signed_root.expires.date(),
                )
            return
        root = Root.from_dict(self._signed_root.to_dict())
        root.version += 1
        root.expires = _expiry(now, ROOT)
        await self._write_root(root)
        await self._keep_copy()

    async def _write_root(self, root: Root) -> None:
        metadata = Metadata(root)
        metadata.sign(self._signers[ROOT])
        await self._blobs.put_metadata(f"{root.version}.root.json", metadata.to_bytes())
        self._root = metadata

    async def _keep_copy(self) -> None:
        if await self._blobs.metadata(LATEST_ROOT) != self.root():
            await self._blobs.put_metadata(LATEST_ROOT, self.root())

    async def _stored_root(self) -> Metadata[Root] | None:
        """The newest; where it is damaged its copy is put back. Raises SigningError where both are."""
        names = await self._blobs.metadata_names()
        newest = max((_number(name) for name in names if name.endswith(".root.json")), default=0)
        if not newest:
            return None
        own = f"{newest}.root.json"
        for name in (own, LATEST_ROOT):
            with contextlib.suppress(SigningError):
                found = _parsed(await self._blobs.metadata(name) or b"", ROOT)
                if found.signed.version == newest:
                    if name != own:
                        logger.warning("%s in the artifact store is damaged: it is put back", own)
                        await self._blobs.put_metadata(own, found.to_bytes())
                    return found
        raise SigningError(f"metadata/{own} in the store is damaged, and so is {LATEST_ROOT}: put it back")

    async def _forget_old(self) -> None:
        """Files that no reader can still be on its way to."""
        names = await self._blobs.metadata_names()
        for role in (SNAPSHOT, TARGETS):
            oldest = self._now[role].signed.version - KEPT
            old = [name for name in names if name.endswith(f".{role}.json") and _number(name) < oldest]
            await self._blobs.drop_metadata(old)

    def _make_keys(self) -> dict[str, CryptoSigner]:
        found: dict[str, CryptoSigner] = {}
        signed_before = bool(self._versions)
        for role in ROLES:
            signer = self._stored_key(role)
            if signer is None and signed_before:
                raise SigningError(
                    f"the artifact store holds no root of trust and {self._keys / role}.pem is missing: put back "
                    "the one or the other"
                )
            if signer is None:
                signer = CryptoSigner.generate_ed25519()
                _write_private(self._keys / f"{role}.pem", signer.private_bytes)
            found[role] = signer
        return found

    def _load_keys(self, root: Root) -> None:
        for role in ROLES:
            signer = self._stored_key(role)
            if signer is None and role == ROOT:
                continue
            if signer is None:
                raise SigningError(
                    f"{self._keys / role}.pem is missing: put back the key that signs {role} metadata, because "
                    "devices trust no other"
                )
            if signer.public_key.keyid not in root.roles[role].keyids:
                raise SigningError(
                    f"{self._keys / role}.pem is not the key that devices trust for {role} metadata: put back "
                    "the one that was there"
                )
            self._signers[role] = signer

    def _stored_key(self, role: str) -> CryptoSigner | None:
        path = self._keys / f"{role}.pem"
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SigningError(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningError(f"{path} is no Ed25519 private key in PEM: put back the one that was there")
        return CryptoSigner(key)


def _targets(releases: Iterable[Release], named: Named) -> dict[str, TargetFile]:
    found: dict[str, TargetFile] = {}
    for release in (one for one in releases if one.stage is not Stage.WITHDRAWN):
        for slot, file in release.files.items():
            for model, called in named(release, slot):
                _add(found, release, file, model, called)
    return dict(sorted(found.items()))


def _add(found: dict[str, TargetFile], release: Release, file: ReleaseFile, model: str, slot: str) -> None:
    custom: dict[str, Any] = {
        "model": model,
        "version": release.version,
        "format": file.format,
        "order": release.order,
        "trial": release.stage is Stage.CANDIDATE,
    }
    if release.places != ANYWHERE:
        custom["places"] = release.places
    if file.golden is not None:
        golden = target_name(model, release.version, slot, golden=True)
        found[golden] = _target(golden, file.golden, dict(custom))
        custom["golden"] = golden
    name = target_name(model, release.version, slot)
    found[name] = _target(name, file.blob, custom)


def _target(name: str, blob: Blob, custom: Mapping[str, Any]) -> TargetFile:
    hashes = {"sha256": blob.digest.removeprefix(HASH)}
    return TargetFile(blob.size, hashes, name, {"custom": dict(custom)})


def _parsed(raw: bytes, role: str) -> Metadata[Any]:
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(raw)
        if metadata.signed.type != role:
            raise ValueError
    except (RepositoryError, StorageError, ValueError, KeyError):
        raise SigningError(f"the {role} metadata in the artifact store cannot be read") from None
    return metadata


def _is_old(signed: Any, now: float, role: str) -> bool:
    return signed.expires.timestamp() - now < LIFE_S[role] / 2


def _expiry(now: float, role: str) -> datetime:
    return datetime.fromtimestamp(now, UTC).replace(microsecond=0) + timedelta(seconds=LIFE_S[role])


def _number(name: str) -> int:
    head = name.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _read_versions(folder: Path) -> dict[str, int]:
    path = folder / VERSIONS
    try:
        found = json.loads(path.read_bytes())
        return {role: int(found.get(role, 0)) for role in ROLES}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise SigningError(
            f"{path} cannot be read: remove it, and its numbers are taken from the artifact store"
        ) from None


def _write_private(path: Path, content: bytes) -> None:
    """Raises SigningError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise SigningError(f"{path} cannot be written: {(error.strerror or '').lower()}") from None
