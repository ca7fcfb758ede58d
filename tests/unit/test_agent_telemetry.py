"""What a device tells of itself, from a tree like /sys; every reading may be missing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge_agent import telemetry
from edge_agent.telemetry import Readings, read_telemetry
from edgewire.v1 import edge_pb2


def put(sys: Path, **files: str) -> None:
    for name, content in files.items():
        path = sys / "class" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


def test_what_is_not_there_is_missing(tmp_path: Path):
    reading = read_telemetry(tmp_path)
    present = {field.name for field, _ in reading.ListFields()}
    assert present <= {"cpu_percent", "memory_percent"}
    assert reading.HasField("memory_percent")


def test_everything_that_is_there(tmp_path: Path):
    put(
        tmp_path,
        thermal__thermal_zone0__temp="61500",
        thermal__thermal_zone0__trip_point_0_type="passive",
        thermal__thermal_zone0__trip_point_0_temp="85000",
        hwmon__hwmon0__temp1_input="72000",
        hwmon__hwmon0__power1_input="2500000",
        hwmon__hwmon1__power1_average="500000",
        power_supply__AC__type="Mains",
        power_supply__BAT0__type="Battery",
        power_supply__BAT0__capacity="41",
        power_supply__BAT0__status="Discharging",
    )
    reading = read_telemetry(tmp_path)
    assert reading.temperature_c == 72.0
    assert reading.throttled is False
    assert reading.HasField("throttled")
    assert reading.battery_percent == 41.0
    assert reading.HasField("charging")
    assert reading.charging is False
    assert reading.power_w == 3.0


def test_a_zone_at_its_passive_point_is_throttled(tmp_path: Path):
    put(
        tmp_path,
        thermal__thermal_zone0__temp="85000",
        thermal__thermal_zone0__trip_point_0_type="passive",
        thermal__thermal_zone0__trip_point_0_temp="85000",
        thermal__thermal_zone1__temp="20000",
        thermal__thermal_zone1__trip_point_0_type="passive",
        thermal__thermal_zone1__trip_point_0_temp="85000",
    )
    assert read_telemetry(tmp_path).throttled is True


def test_nonsense_is_missing(tmp_path: Path):
    put(
        tmp_path,
        thermal__thermal_zone0__temp="-274000",
        thermal__thermal_zone1__temp="hot",
        power_supply__BAT0__type="Battery",
        power_supply__BAT0__capacity="250",
    )
    reading = read_telemetry(tmp_path)
    assert not reading.HasField("temperature_c")
    assert not reading.HasField("battery_percent")


async def test_a_reading_that_hangs_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(telemetry, "READ_TIMEOUT_S", 0.05)
    go_on = threading.Event()
    readings = [
        lambda: edge_pb2.Telemetry(cpu_percent=1.0),
        lambda: edge_pb2.Telemetry(cpu_percent=2.0) if go_on.wait(10) else edge_pb2.Telemetry(),
    ]
    found = Readings(lambda: readings.pop(0)())
    assert (await found.latest()).cpu_percent == 1.0
    assert (await found.latest()).cpu_percent == 1.0
    assert readings == []
    monkeypatch.setattr(telemetry, "READ_TIMEOUT_S", 10)
    go_on.set()
    assert (await found.latest()).cpu_percent == 2.0
