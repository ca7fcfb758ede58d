"""Somebody who publishes release after release and says what was acknowledged.

Run as a program it is killed so many times at random moments, in a folder that is new after every twentieth
kill, and after each its readers look at what is there; the last one of each folder is let to end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewire.targets import target_name
from gateway.control import signing
from gateway.core.config import Config
from gateway.store.blobs import BlobStore
from gateway.store.database import FILE
from tests.support.hub import edge, hub_config
from tests.support.released import Client, shop_of

LIVES = 20
"""In one folder."""
LAST = 8
"""A life publishes as many versions."""
WRITES = 60
"""Every write up to this one may be the last."""
SLOT = "onnx"
LIMIT_S = 60.0


def config_of(folder: Path) -> Config:
    file = folder / "one.tflite"
    file.write_bytes(b"one")
    variant = {"endpoint": "cameras", "artifact": str(file)}
    return hub_config([edge("cameras")], [{"name": "digits", "variants": [variant]}])


def content_of(version: str) -> bytes:
    return f"the model of version {version}".encode() * 1000


def dies_before(write: int) -> None:
    """This process is killed before it makes its write of this number to the store or beside the keys."""
    private, put = signing._write_private, BlobStore._put
    left = write

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_private(path: Path, content: bytes) -> None:
        count()
        private(path, content)

    async def counted_put(self: BlobStore, path: str, content: bytes) -> None:
        count()
        await put(self, path, content)

    signing._write_private, BlobStore._put = counted_private, counted_put


async def publish(folder: Path, says: int, versions: int) -> None:
    """Whatever has returned is told to the descriptor, a line each."""

    def say(*words: str) -> None:
        os.write(says, (" ".join(words) + "\n").encode())

    async with shop_of(config_of(folder), folder / "state") as shop:
        say("started")
        releases = shop.releases
        begin = max(int(release.version) for release in releases.of("digits")) + 1
        for number in range(begin, begin + versions):
            version, before = str(number), releases.standing()["digits"]
            await releases.add("digits", {SLOT: ("onnx", content_of(version), None)}, source="push")
            say("candidate", version)
            await releases.judged("digits", version, True)
            say("passed", version)
            if number % 3 == 0:
                await releases.withdraw("digits", version)
                say("withdrawn", version)
            else:
                await releases.stand("digits", version)
                say("stands", version)
                if number % 3 == 1 and before != "1":
                    await releases.order_back("digits", before)
                    say("back", before)


STAGES = ("candidate", "passed", "stands", "back", "withdrawn")


@dataclass(slots=True)
class Readers:
    """A device that has been there from the start, and what it knows was acknowledged."""

    folder: Path
    device: Client | None = None
    told: dict[str, int] = field(default_factory=dict[str, int])
    """How far each version is known to have come, by STAGES."""
    orders: dict[str, int] = field(default_factory=dict[str, int])
    recorded: set[str] = field(default_factory=set[str])
    """Versions that were in the database at the last look: whoever starts signs them."""
    looks: int = 0

    def hear(self, lines: list[str]) -> None:
        for line in lines:
            stage, _, version = line.partition(" ")
            if version:
                self.told[version] = max(self.told.get(version, 0), STAGES.index(stage))

    def look(self, started: bool) -> None:
        """The signed view is whole, holds what was acknowledged, and is not older than what was seen before."""
        state = self.folder / "state"
        metadata = state / "artifacts" / "metadata"
        if self.device is None:
            if not started:
                return
            self.device = Client((metadata / "1.root.json").read_bytes(), metadata, self.folder / "device")
        self.looks += 1
        late = Client((metadata / "1.root.json").read_bytes(), metadata, self.folder / f"late-{self.looks}")
        signed = targets_of(self.device)
        assert targets_of(late) == signed
        recorded = recorded_in(state)
        for name, target in signed.items():
            digest = target["hashes"]["sha256"]
            blob = state / "artifacts" / "blobs" / digest[:2] / digest
            held = blob.read_bytes()
            assert (len(held), hashlib.sha256(held).hexdigest()) == (target["length"], digest), name
            version = target["custom"]["version"]
            assert version in recorded, f"{name} is signed and not recorded"
            assert target["custom"]["order"] >= self.orders.get(version, 0), f"{name} went back in order"
            self.orders[version] = target["custom"]["order"]
        offered = {target["custom"]["version"] for target in signed.values()}
        for version in self.recorded if started else ():
            assert version in offered or recorded[version][0] == "withdrawn", f"{version} was not made good"
        self.recorded = set(recorded)
        for version, stage in self.told.items():
            assert version in recorded, f"version {version} was acknowledged and is lost"
            target = signed.get(target_name("digits", version, "cameras" if version == "1" else SLOT))
            if stage == STAGES.index("withdrawn"):
                assert target is None, version
            elif recorded[version][0] != "withdrawn":
                assert target is not None, f"version {version} was acknowledged and is not signed"
                assert not (target["custom"]["trial"] and stage), (
                    f"version {version} has passed and is a trial"
                )

    def end(self) -> None:
        """Nothing is left to be made good: what is signed is what is recorded, each version once."""
        self.look(True)
        assert self.device is not None
        signed = targets_of(self.device)
        recorded = recorded_in(self.folder / "state")
        offered = {v: order for v, (stage, order) in recorded.items() if stage != "withdrawn"}
        assert {t["custom"]["version"]: t["custom"]["order"] for t in signed.values()} == offered
        assert sorted(map(int, recorded)) == list(range(1, len(recorded) + 1))


def targets_of(client: Client) -> dict[str, Any]:
    client.refresh()
    return json.loads(client.cached("targets.json"))["signed"]["targets"]


def recorded_in(state: Path) -> dict[str, tuple[str, int]]:
    """Stage and order by version."""
    with sqlite3.connect(state / FILE) as database:
        rows = database.execute(
            "SELECT version, json_extract(document, '$.stage'), json_extract(document, '$.order') FROM releases"
        ).fetchall()
    return {version: (stage, order) for version, stage, order in rows}


def life(folder: Path, lots: random.Random | None) -> tuple[list[str], bool]:
    """What it told, and whether it was killed; without lots it starts, has nothing to publish, and ends."""
    write = lots.randrange(1, WRITES) if lots is not None and lots.random() < 0.5 else 0
    reads, says = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            if write:
                dies_before(write)
            asyncio.run(publish(folder, says, LAST if lots else 0))
            os._exit(0)
        except BaseException as error:
            print(f"{folder.name}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    os.close(says)
    told = b""
    if lots is not None and not write:
        # At some line, and a moment after; without any line it is in its start that it dies.
        lines, moment = lots.choice((0, *range(1, 16))), lots.uniform(0, 0.02)
        while told.count(b"\n") < lines and (more := read_within(reads)):
            told += more
        time.sleep(moment if lines else moment * 20)
        os.kill(child, signal.SIGKILL)
    while more := read_within(reads):
        told += more
    os.close(reads)
    _, status = os.waitpid(child, 0)
    assert not (os.WIFEXITED(status) and os.WEXITSTATUS(status)), "it failed by itself"
    return told.decode().splitlines(), os.WIFSIGNALED(status)


def read_within(descriptor: int) -> bytes:
    ready, _, _ = select.select([descriptor], [], [], LIMIT_S)
    assert ready, f"nothing was told within {LIMIT_S} s"
    return os.read(descriptor, 4096)


def main(folder: Path, kills: int, seed: int) -> None:
    """Prints how often it was killed after each kind of line."""
    lots = random.Random(seed)
    after: Counter[str] = Counter()
    number = 0
    while after.total() < kills:
        place = folder / str(number)
        place.mkdir()
        readers = Readers(place)
        number += 1
        for _ in range(LIVES):
            told, killed = life(place, lots)
            readers.hear(told)
            readers.look("started" in told)
            if killed:
                after[told[-1].partition(" ")[0] if told else "nothing"] += 1
            if after.total() == kills:
                break
        told, _ = life(place, None)
        readers.hear(told)
        readers.end()
    print(json.dumps(after))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
