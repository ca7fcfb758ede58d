"""How the device is: processor, memory, heat, battery, power. Every reading may be missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from edgewire.v1 import edge_pb2

READ_TIMEOUT_S = 2.0
"""A reading that takes longer (a battery's controller that hangs) is waited for no more."""

_HEAT_C = (-50.0, 150.0)
_MAX_POWER_W = 10_000.0


def read_telemetry(sys: Path = Path("/sys")) -> edge_pb2.Telemetry:
    """One reading of everything that this machine tells; takes as long as the kernel does.

    `temperature_c` is the hottest sensor's, `throttled` whether a thermal zone is at the point where the
    kernel slows the processor down, `power_w` the sum of the power sensors', or the battery's draw.
    """
    telemetry = edge_pb2.Telemetry()
    with suppress(OSError, ValueError):
        telemetry.cpu_percent = psutil.cpu_percent(None)
    with suppress(OSError, ValueError):
        telemetry.memory_percent = psutil.virtual_memory().percent
    _heat(sys, telemetry)
    _battery(sys, telemetry)
    _power(sys, telemetry)
    return telemetry


class Readings:
    """Reads in a thread of its own, one at a time, which no one waits for at the end of the process."""

    def __init__(self, read: Callable[[], edge_pb2.Telemetry] = read_telemetry) -> None:
        self._read = read
        self._last = edge_pb2.Telemetry()
        self._reading: asyncio.Future[edge_pb2.Telemetry] | None = None

    async def latest(self) -> edge_pb2.Telemetry:
        """A new reading, or a copy of the last one when it fails or takes longer than READ_TIMEOUT_S."""
        if self._reading is None:
            self._reading = self._begin()
        reading = self._reading
        done, _ = await asyncio.wait((reading,), timeout=READ_TIMEOUT_S)
        if done:
            self._reading = None
            if reading.exception() is None:
                self._last = reading.result()
        copy = edge_pb2.Telemetry()
        copy.CopyFrom(self._last)
        return copy

    def _begin(self) -> asyncio.Future[edge_pb2.Telemetry]:
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[edge_pb2.Telemetry] = loop.create_future()

        def tell(result: edge_pb2.Telemetry | Exception) -> None:
            if reading.done():
                return
            if isinstance(result, Exception):
                reading.set_exception(result)
            else:
                reading.set_result(result)

        def read() -> None:
            try:
                result: edge_pb2.Telemetry | Exception = self._read()
            except Exception as error:
                result = error
            with suppress(RuntimeError):  # The loop has closed meanwhile.
                loop.call_soon_threadsafe(tell, result)

        threading.Thread(target=read, name="tidegate-telemetry", daemon=True).start()
        return reading


def _heat(sys: Path, telemetry: edge_pb2.Telemetry) -> None:
    found: list[float] = []
    for zone in sorted(sys.glob("class/thermal/thermal_zone*")):
        heat = _number(zone / "temp", 1e-3)
        if heat is None or not _HEAT_C[0] <= heat <= _HEAT_C[1]:
            continue
        found.append(heat)
        for trip in _passive_trips(zone):
            telemetry.throttled = telemetry.throttled or heat >= trip
    for sensor in sorted(sys.glob("class/hwmon/hwmon*/temp*_input")):
        heat = _number(sensor, 1e-3)
        if heat is not None and _HEAT_C[0] <= heat <= _HEAT_C[1]:
            found.append(heat)
    if found:
        telemetry.temperature_c = max(found)


def _passive_trips(zone: Path) -> Iterator[float]:
    for kind in sorted(zone.glob("trip_point_*_type")):
        if _text(kind) != "passive":
            continue
        trip = _number(kind.with_name(kind.name.removesuffix("_type") + "_temp"), 1e-3)
        if trip is not None and trip > 0:
            yield trip


def _battery(sys: Path, telemetry: edge_pb2.Telemetry) -> None:
    for supply in sorted(sys.glob("class/power_supply/*")):
        if _text(supply / "type") != "Battery" or _text(supply / "scope") == "Device":
            continue
        percent = _number(supply / "capacity", 1.0)
        if percent is None or not 0.0 <= percent <= 100.0:
            continue
        telemetry.battery_percent = percent
        status = _text(supply / "status")
        if status in ("Charging", "Full", "Not charging"):
            telemetry.charging = True
        elif status == "Discharging":
            telemetry.charging = False
        return


def _power(sys: Path, telemetry: edge_pb2.Telemetry) -> None:
    sensors = [
        *sorted(sys.glob("class/hwmon/hwmon*/power*_input")),
        *sorted(sys.glob("class/hwmon/hwmon*/power*_average")),
    ] or sorted(sys.glob("class/power_supply/*/power_now"))
    found = [watts for sensor in sensors if (watts := _number(sensor, 1e-6)) is not None]
    if found and 0.0 <= sum(found) <= _MAX_POWER_W:
        telemetry.power_w = sum(found)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path, factor: float) -> float | None:
    text = _text(path)
    try:
        return None if text is None else int(text) * factor
    except ValueError:
        return None
