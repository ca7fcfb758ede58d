"""A device that takes an update and dies at a step of it, in a process of its own.

`python -m tests.support.swap_agent FOLDER HUB LAST`: FOLDER is the device's, HUB what `Served` wrote. It
ends itself by SIGKILL at the step LAST, counted from when the hub spoke; 0 for never, and then it prints how
many there were. A step is whatever touches the disk, starts a worker, brings a piece from the hub, or swaps.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from edge_agent.ports import Hub
from edge_agent.update import DeviceModels, device
from edgewire.places import Place, Tier
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason
from tests.support.signed import HERE

PIECE = 4096


class Served:
    """A hub's files in a folder: `blobs`, `metadata`, `root` and `desired`."""

    def __init__(self, folder: Path, step: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._step = step

    def write(self, hub: Any, wanted: edge_pb2.DesiredModel) -> None:
        """What a tests.support.tflite_models.Hub has."""
        for kind, files in (("blobs", hub.files), ("metadata", hub.signed.files)):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (self.folder / kind / name).write_bytes(content)
        (self.folder / "root").write_bytes(hub.root)
        (self.folder / "desired").write_bytes(edge_pb2.Desired(models=[wanted]).SerializeToString())

    def wish(self, on: DeviceModels) -> None:
        wanted = edge_pb2.Desired.FromString((self.folder / "desired").read_bytes())
        root = (self.folder / "root").read_bytes()
        on.desire(wanted, Hub(self._fetch, self._metadata, HERE, Place(Tier.SITE), root))

    def _fetch(self, digest: str, offset: int) -> AsyncGenerator[bytes, None]:
        return self._pieces("blobs", digest, offset)

    def _metadata(self, name: str) -> AsyncGenerator[bytes, None]:
        return self._pieces("metadata", name, 0)

    async def _pieces(self, kind: str, name: str, offset: int) -> AsyncGenerator[bytes, None]:
        try:
            content = (self.folder / kind / name).read_bytes()
        except FileNotFoundError:
            raise OipError(Reason.NOT_FOUND, "no such file") from None
        for at in range(offset, len(content), PIECE):
            self._step()
            yield content[at : at + PIECE]


class _Steps:
    def __init__(self, last: int) -> None:
        self.taken = 0
        self._last = last

    def step(self) -> None:
        self.taken += 1
        if self.taken == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, holder: Any, name: str) -> None:
        """A step before and one after each call."""
        plain = getattr(holder, name)

        def call(*given: Any, **named: Any) -> Any:
            self.step()
            found = plain(*given, **named)
            self.step()
            return found

        setattr(holder, name, call)


async def main(folder: Path, hub: Path, last: int) -> None:
    steps = _Steps(last)
    on = DeviceModels(folder)
    await on.start()
    for name in ("fsync", "replace", "unlink", "symlink", "mkdir"):
        steps.count(os, name)
    for holder, name in ((DeviceModels, "_swap"), (DeviceModels, "_commit"), (device, "serving")):
        steps.count(holder, name)
    Served(hub, steps.step).wish(on)
    while True:
        (found,) = on.states()
        if found.state == edge_pb2.ModelState.ACTIVE and not on._ending:
            break
        await asyncio.sleep(0.01)
    print(steps.taken, flush=True)
    await on.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
