"""A small repository of signed targets, made with python-tuf, and whatever can be wrong with one."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from edgewire import targets
from edgewire.places import Place, Tier
from oip.errors import OipError
from oip.reasons import Reason

HERE = Place(Tier.DEVICE, site="plant-7", device="cam-7a")
"""Where a test's device is."""
ROLES = (Root.type, Targets.type, Snapshot.type, Timestamp.type)


def soon() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@dataclass
class Repository:
    """`files` is what a hub serves by name; `asked` is what it was asked for. Change `targets`, `signers`
    or `expires`, then `publish`; the old `files` are a copy away for a replay."""

    signers: dict[str, CryptoSigner] = field(
        default_factory=lambda: {role: CryptoSigner.generate_ed25519() for role in ROLES}
    )
    targets: dict[str, TargetFile] = field(default_factory=dict)
    expires: dict[str, datetime] = field(default_factory=dict)
    """By role, where it is not soon()."""
    files: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda name: None
    """Called with the name of each file before it is given; what it raises breaks the call off."""
    piece: int = 1024

    def __post_init__(self) -> None:
        self.publish_root()

    @property
    def root(self) -> bytes:
        """The first."""
        return self.files["1.root.json"]

    async def metadata(self, name: str) -> AsyncGenerator[bytes, None]:
        """edge_agent.ports.Metadata."""
        self.asked.append(name)
        self.before(name)
        content = self.files.get(name)
        if content is None:
            raise OipError(Reason.NOT_FOUND, "the hub ended the download with NOT_FOUND")
        for at in range(0, len(content), self.piece):
            yield content[at : at + self.piece]

    def add(
        self,
        model: str,
        version: str,
        data: bytes,
        golden: bytes = b"",
        /,
        slot: str = "tflite",
        **custom: Any,
    ) -> tuple[str, str]:
        """Sign a file by the next order of its model, with `custom` in place of or besides what is usual;
        the names of its targets."""
        self.orders[model] = self.orders.get(model, 0) + 1
        said = {"model": model, "version": version, "format": "tflite", "order": self.orders[model]}
        said |= custom
        beside = ""
        if golden:
            beside = targets.target_name(model, version, slot, golden=True)
            self.put(beside, golden, dict(said))
            said.setdefault("golden", beside)
        name = targets.target_name(model, version, slot)
        self.put(name, data, said)
        self.publish()
        return name, beside

    def put(self, name: str, data: bytes, custom: dict[str, Any]) -> None:
        hashes = {"sha256": hashlib.sha256(data).hexdigest()}
        self.targets[name] = TargetFile(len(data), hashes, name, {"custom": custom})

    def publish(self) -> None:
        """Sign what `targets` are now."""
        found = Targets(self._next(Targets.type), expires=self._until(Targets.type), targets=self.targets)
        self._write(found)
        meta = {"targets.json": MetaFile(found.version)}
        snapshot = Snapshot(self._next(Snapshot.type), expires=self._until(Snapshot.type), meta=meta)
        self._write(snapshot)
        self.stamp(snapshot.version)

    def stamp(self, snapshot: int | None = None) -> None:
        """A new timestamp alone."""
        leads = MetaFile(snapshot or self.versions[Snapshot.type])
        version, until = self._next(Timestamp.type), self._until(Timestamp.type)
        self._write(Timestamp(version, expires=until, snapshot_meta=leads))

    def publish_root(self, *also: CryptoSigner) -> None:
        """Sign a root that names the keys of now; `also` by those of before, for a rotation."""
        root = Root(self._next(Root.type), expires=self._until(Root.type), consistent_snapshot=True)
        for role in ROLES:
            root.add_key(self.signers[role].public_key, role)
        metadata = Metadata(root)
        for signer in (self.signers[Root.type], *also):
            metadata.sign(signer, append=True)
        self.files[f"{root.version}.root.json"] = metadata.to_bytes()

    def _next(self, role: str) -> int:
        self.versions[role] = self.versions.get(role, 0) + 1
        return self.versions[role]

    def _until(self, role: str) -> datetime:
        return self.expires.get(role, soon())

    def _write(self, signed: Any) -> None:
        metadata = Metadata(signed)
        metadata.sign(self.signers[signed.type])
        name = "timestamp.json" if signed.type == Timestamp.type else f"{signed.version}.{signed.type}.json"
        self.files[name] = metadata.to_bytes()
