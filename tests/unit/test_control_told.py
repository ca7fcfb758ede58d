"""What control tells of updates: gauges, logs of runs, trials as devices report them, golden vectors."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.control import update_sights
from gateway.control.gauges import STATES, gauges
from gateway.control.run_log import RunLogs
from gateway.control.watches import Watch
from gateway.core.fleet import DeviceReport, TrialReport
from gateway.core.place import Place, Tier
from gateway.core.release import Stage
from gateway.core.training import Golden
from gateway.drift.monitor import Drift
from gateway.rollout.loop import begin
from gateway.rollout.loop_messages import Progress, RolloutSeen
from gateway.rollout.loop_state import Cause, Origin, Phase, Trial
from gateway.store.golden import golden_npz
from tests.support.update_world import FIRST, World, config


def _rollout(id: str, model: str, *, open: bool, **devices: int) -> dict[str, Any]:
    return {"id": id, "model": model, "open": open, "devices": {**dict.fromkeys(STATES, 0), **devices}}


def _device(name: str, connected: bool, spooled: int) -> DeviceReport:
    return DeviceReport(name, Place(Tier.DEVICE, site="s", device=name), {}, connected, spooled=spooled)


def test_gauges_are_of_what_is_open_and_the_last_of_each_model() -> None:
    watches = {
        "digits": Watch("output.confidence", "psi", Drift(score=0.3)),
        "gauges": Watch("input.mean", "ks"),
    }
    rollouts = [
        _rollout("ro-4", "digits", open=True, moving=2, confirmed=1),
        _rollout("ro-3", "digits", open=False, confirmed=9),
        _rollout("ro-2", "faces", open=False, returned=4),
        _rollout("ro-1", "faces", open=False, confirmed=9),
    ]
    rows = gauges(watches, rollouts, [_device("a", True, 5), _device("b", True, 7), _device("c", False, 99)])
    assert [row for row in rows if row[0] == "tidegate_drift"] == [
        ("tidegate_drift", ("digits", "output.confidence"), 0.3)
    ]
    told = {
        (labels[0], labels[1]): value for name, labels, value in rows if name == "tidegate_rollout_devices"
    }
    assert {rollout for rollout, _ in told} == {"ro-4", "ro-2"}
    assert (told["ro-4", "moving"], told["ro-4", "confirmed"], told["ro-2", "returned"]) == (2, 1, 4)
    assert rows[-1] == ("tidegate_spool_records", (), 12)


def test_a_log_keeps_its_end_within_bounds(tmp_path: Path) -> None:
    logs = RunLogs(tmp_path / "updates", most=1000)
    assert logs.tail("u1") == ""
    for number in range(500):
        logs.add("u1", f"line {number}\n")
    size = (tmp_path / "updates" / "u1.log").stat().st_size
    assert 1000 <= size <= 2000 + 40
    lines = logs.tail("u1").splitlines()
    assert lines[0] == "(earlier lines are not kept)"
    assert lines[-1] == "line 499"
    assert lines[1:] == [f"line {number}" for number in range(500 - len(lines) + 1, 500)]
    assert logs.tail("u1", 30).splitlines() == ["line 497", "line 498", "line 499"]
    logs.forget("u1")
    logs.forget("u1")
    assert logs.tail("u1") == ""
    assert list((tmp_path / "updates").iterdir()) == []


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "updates").write_text("in the way")
    RunLogs(tmp_path / "updates").add("u1", "words")
    assert "the log of update u1 cannot be written" in caplog.text


async def test_only_a_report_of_the_very_file_counts_as_a_trial() -> None:
    world = World()
    world.ledger.add("release", model="digits", version="2", source="u1", places="", reference={}, golden=[])
    release = world.releases.get("digits", "2")
    state = begin("u1", "digits", Cause(Origin.OPERATOR), 0.0)
    devices = list(await world.ports().fleet())
    seen = update_sights.fleet_seen(config(), state, release, devices, world.ports().fits)
    assert sorted(seen.groups["cams"].connected) == ["cam-1", "cam-2"]
    assert set(seen.groups["cams"].reports) == {"cam-1", "cam-2"}
    other = TrialReport("sha256:other", "active", runs=5)
    devices[0] = replace(devices[0], trials={("digits", "2"): other}, connected=False)
    seen = update_sights.fleet_seen(config(), state, release, devices, world.ports().fits)
    assert seen.groups["cams"].able == 2
    assert seen.groups["cams"].connected == (devices[1].name,)
    assert set(seen.groups["cams"].reports) == {devices[1].name}


def test_the_worst_trial_is_the_one_that_is_judged() -> None:
    def trial(device: str, state: str, ms: float, serves: float) -> Trial:
        report = TrialReport("sha256:1", state, p50_ms=ms, runs=3, active_p50_ms=serves)
        return Trial("cams", device, 0.0, "passed" if state == "active" else "failed", "", report)

    state = begin("u1", "digits", Cause(Origin.OPERATOR), 0.0)
    slow, quick, broken = trial("a", "active", 3, 1), trial("b", "active", 9, 9), trial("c", "failed", 0, 0)
    assert update_sights.worst_of(state) == ("", None)
    assert update_sights.worst_of(replace(state, trials=(quick, slow)))[0] == "a"
    assert update_sights.worst_of(replace(state, trials=(slow, broken, quick)))[0] == "c"
    assert update_sights.worst_of(replace(state, trials=(Trial("cams", "d", 0.0, "late"),))) == ("", None)


def test_where_no_rollout_is_remembered_the_release_says_how_it_ended() -> None:
    state = replace(begin("u1", "digits", Cause(Origin.OPERATOR), 0.0), phase=Phase.ROLLING, version="1")

    def seen(release: Any = FIRST, stands: bool = False) -> RolloutSeen:
        return update_sights.rollout_seen(state, [], release, stands)

    assert seen() == RolloutSeen("", Progress.NONE)
    assert seen(stands=True) == RolloutSeen("", Progress.DONE)
    withdrawn = replace(FIRST, stage=Stage.WITHDRAWN)
    assert seen(withdrawn) == RolloutSeen("", Progress.UNDONE, "Version 1 is withdrawn.")


def test_golden_vectors_are_written_as_devices_read_them() -> None:
    given, wanted = {"pixels": np.ones((2, 4), np.float32)}, {"probabilities": np.zeros((2, 3), np.float32)}
    golden = Golden([(given, wanted), (wanted, given)], 0.02)
    raw = golden_npz(golden)
    assert raw == golden_npz(golden)
    with np.load(io.BytesIO(raw), allow_pickle=False) as found:
        assert sorted(found.files) == [
            "0/input/pixels", "0/output/probabilities", "1/input/probabilities", "1/output/pixels", "tolerance",
        ]  # fmt: skip
        assert float(found["tolerance"]) == 0.02
        assert found["0/input/pixels"].dtype == np.float32
