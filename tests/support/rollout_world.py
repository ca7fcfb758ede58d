"""What surrounds `Rollouts`, scripted: devices that do as they are told, releases, followers, evidence. It
can be kept in a file, so that it outlives whoever is killed.

Run as a program it is killed so many times at random moments while it rolls version after version out:
even versions are good, odd ones break on every third device.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from edgewire.places import Place, Tier
from gateway.control.ports import Fit, Outside
from gateway.control.rollouts import Rollouts
from gateway.core.config import HaltConfig, RolloutConfig
from gateway.core.evidence import Evidence
from gateway.core.fleet import DeviceReport, ModelReport
from gateway.core.release import Blob, Release, ReleaseFile, Stage
from gateway.store.database import migrate, open_database
from oip.errors import OipError
from oip.reasons import Reason

MODEL = "digits"
PLAN = RolloutConfig(
    waves=("1", "50%", "100%"),
    soak_s=3,
    min_requests=5,
    device_timeout_s=60,
    halt=HaltConfig(error_rate=0.2),
)


@cache
def digest_of(version: str) -> str:
    return f"sha256:{int(version):064x}" if version else ""


def release(version: str, order: int, stage: Stage = Stage.PASSED) -> Release:
    file = ReleaseFile("tflite", Blob(digest_of(version), 1000))
    return Release(MODEL, version, {"tflite": file}, order, stage)


@dataclass
class Gadget:
    """A device. It says of itself what the real one does."""

    site: str
    connected: bool = True
    serves: str = "1"
    order: int = 1
    told: str = "1"
    fault: str = ""
    breaks_on: tuple[str, ...] = ()
    switches: list[str] = field(default_factory=list[str])
    refused: int = 0

    def work(self, orders: Mapping[str, int]) -> None:
        """A second passes. A lower order than that of what serves is refused, as a downgrade is."""
        if not self.connected or self.told in ("", self.serves) or self.fault == self.told:
            return
        if orders[self.told] < self.order:
            self.refused += 1
        elif self.told in self.breaks_on:
            self.fault = self.told
        else:
            self.serves, self.order, self.fault = self.told, orders[self.told], ""
            self.switches.append(self.told)

    def report(self, name: str) -> DeviceReport:
        return _report(name, self.site, self.connected, self.told, self.serves, self.fault == self.told)


@cache
def _report(name: str, site: str, connected: bool, told: str, serves: str, failed: bool) -> DeviceReport:
    state = "active" if told == serves else "failed" if failed else "fetching"
    reason = "golden vectors differ" if state == "failed" else ""
    model = ModelReport(told, digest_of(told), state, reason, serves, digest_of(serves))
    place = Place(Tier.DEVICE, site=site, device=name)
    return DeviceReport(name, place, {}, connected, {}, {MODEL: model} if connected else {})


class World:
    """Every port of `Rollouts`. `trouble` makes the next calls of a port fail."""

    def __init__(self, devices: dict[str, Gadget], file: Path | None = None) -> None:
        self.devices = devices
        self.file = file
        self.now = 1_000_000.0
        self.shelf: dict[str, Release] = {"1": release("1", 1)}
        self.stands = "1"
        self.log: list[str] = []
        self.followers: dict[str, str] = {}
        self.plan = PLAN
        self.unfit: dict[str, str] = {}
        self.answers: dict[str, Evidence] = {}
        self.trouble: set[str] = set()
        self.rereads = 0
        self.rollouts: Rollouts | None = None
        self.follow_gate: asyncio.Event | None = None

    def outside(self) -> Outside:
        return Outside(
            self, self.fleet, self.fits, self.evidence, self.followers_of, self.follow, lambda _: self.plan, self.changed
        )  # fmt: skip

    def _fails(self, port: str) -> None:
        if port in self.trouble:
            raise OipError(Reason.UNAVAILABLE, f"{port} is not available")

    def get(self, model: str, version: str) -> Release:
        if model != MODEL or version not in self.shelf:
            raise OipError(Reason.NOT_FOUND, f"no release {version} of {model}")
        return self.shelf[version]

    def standing(self) -> Mapping[str, str]:
        return {MODEL: self.stands} if self.stands else {}

    async def judged(self, model: str, version: str, passed: bool) -> Release:
        self.shelf[version] = replace(
            self.get(model, version), stage=Stage.PASSED if passed else Stage.REFUSED
        )
        return self._noted("judged", version)

    async def order_back(self, model: str, version: str) -> Release:
        self._fails("order_back")
        found = self.get(model, version)
        if found.stage is Stage.CANDIDATE:
            raise OipError(Reason.CONFLICT, "a candidate cannot be ordered")
        top = max((r.order for r in self.shelf.values() if r.version != version), default=0)
        if found.order > top:
            return found
        self.shelf[version] = replace(found, order=top + 1)
        return self._noted("ordered", version)

    async def stand(self, model: str, version: str) -> Release:
        self._fails("stand")
        if self.stands != version:
            self.stands = version
            self._noted("stands", version)
        return self.shelf[version]

    async def withdraw(self, model: str, version: str) -> Release:
        self._fails("withdraw")
        found = self.get(model, version)
        if found.stage is not Stage.WITHDRAWN:
            self.shelf[version] = replace(found, stage=Stage.WITHDRAWN)
            self._noted("withdrawn", version)
        return self.shelf[version]

    def _noted(self, what: str, version: str) -> Release:
        self.log.append(f"{what} {version}")
        self.save()
        return self.shelf[version]

    async def fleet(self) -> Sequence[DeviceReport]:
        self._fails("fleet")
        return [device.report(name) for name, device in self.devices.items()]

    def fits(self, release: Release, device: DeviceReport) -> Fit | None:
        if device.name.startswith("other"):
            return None
        return Fit(MODEL, digest_of(release.version), self.unfit.get(device.name, ""))

    async def evidence(self, model: str, version: str, since: float, until: float) -> Evidence:
        self._fails("evidence")
        if version in self.answers:
            return self.answers[version]
        serving = sum(d.connected and d.serves == version for d in self.devices.values())
        return Evidence(answered=serving * max(0, int(until - since)))

    def followers_of(self, release: Release) -> Mapping[str, str]:
        return dict.fromkeys(self.followers, "")

    async def follow(self, model: str, version: str) -> Mapping[str, str]:
        if self.follow_gate is not None:
            await self.follow_gate.wait()
        self._fails("follow")
        self._noted("follow", version)
        return dict(self.followers)

    async def changed(self) -> None:
        self._fails("changed")
        assert self.rollouts is not None
        self.rereads += 1
        moved = self.rollouts.moved().get(MODEL, {})
        for name, device in self.devices.items():
            device.told = moved.get(name, self.stands)
        self.save()

    def pass_second(self) -> None:
        self.now += 1.0
        orders = {version: release.order for version, release in self.shelf.items()}
        for device in self.devices.values():
            device.work(orders)
        self.save()

    def save(self) -> None:
        if self.file is None:
            return
        kept = {
            "now": self.now,
            "stands": self.stands,
            "log": self.log,
            "shelf": [(r.version, r.order, r.stage.value) for r in self.shelf.values()],
            "devices": {name: asdict(device) for name, device in self.devices.items()},
        }
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(kept))
        os.replace(fresh, self.file)

    @staticmethod
    def load(file: Path) -> World:
        kept: dict[str, Any] = json.loads(file.read_text())
        world = World({name: Gadget(**device) for name, device in kept["devices"].items()}, file)
        world.now, world.stands, world.log = kept["now"], kept["stands"], kept["log"]
        world.shelf = {
            version: release(version, order, Stage(stage)) for version, order, stage in kept["shelf"]
        }
        return world


async def opened(folder: Path, world: World) -> Rollouts:
    rollouts = Rollouts(open_database(folder), world.outside(), lambda: world.now)
    world.rollouts = rollouts
    await rollouts.resume_all()
    return rollouts


async def _all_versions(folder: Path, last: int) -> None:
    world = World.load(folder / "world.json")
    rollouts = await opened(folder, world)
    for number in range(2, last + 1):
        version = str(number)
        if version not in world.shelf:
            world.shelf[version] = release(version, max(r.order for r in world.shelf.values()) + 1)
            world.save()
        id = await rollouts.start(MODEL, version, source=f"update-{version}")
        while rollouts.view(id)["open"]:
            world.pass_second()
            await rollouts.tick()


def main(folder: Path, kills: int, seed: int) -> None:
    """Forks somebody who rolls out, kills it after a moment, and again; the last one is let to end."""
    drawn = random.Random(seed)
    last = 3 + kills // 4
    migrate(folder)
    odd = tuple(str(number) for number in range(3, last + 1, 2))
    devices = {f"cam-{n}": Gadget(f"site-{n % 2}", breaks_on=odd if n % 3 == 0 else ()) for n in range(9)}
    World(devices, folder / "world.json").save()
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(_all_versions(folder, last))
                os._exit(0)
            except BaseException as error:
                print(f"attempt {attempt}: {error!r}", file=sys.stderr)
                os._exit(1)
        if attempt < kills:
            time.sleep(drawn.uniform(0.0, 0.25))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
