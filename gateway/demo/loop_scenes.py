"""The demo's last rows: two assembly lines whose cameras get turned and dirty, and the loop that mends it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from gateway.demo.caller import Caller
from gateway.demo.digits import DigitsModel
from gateway.demo.digits.data import training_images
from gateway.demo.digits.golden import float_golden, int8_golden
from gateway.demo.digits.model import CALIBRATION
from gateway.demo.digits.network import fit
from gateway.demo.line import CAMERAS, MODEL, Lines, lines_staged
from gateway.demo.plant import wait_until
from gateway.demo.row import Row, Tick
from gateway.demo.stage import CHEAP, Stage
from gateway.demo.tflite import golden_beside, write_golden

CLEAN_S = 8.0
"""How long the lines run before anything happens: longer than a window of the drift's watch."""
AFTER_S = 6.0
LOOP_TIMEOUT_S = 240.0
ROLLOUT_TIMEOUT_S = 120.0
LEAST_RECOVERED = 0.8
CALLS_IN_ALL = 200


def play(stage: Stage, tick: Tick) -> Iterator[Row]:
    """Rows (l) and (m), in order, on cameras of their own at the cloud's gateway."""
    with lines_staged(stage.work, stage.cloud, stage.scenery) as lines:
        yield _loop_closes(stage, lines, tick)
        yield _worse_is_stopped(stage, lines, tick)


def _loop_closes(stage: Stage, lines: Lines, tick: Tick) -> Row:
    """Digits turn and fade at both sites. Nobody touches anything until the cameras read them again."""
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began >= CLEAN_S, CLEAN_S + 5, "the clock stands still")
    turned = time.monotonic()
    before = lines.accuracy(began, turned)
    lines.scenery.turned = True
    tick(CALLS_IN_ALL // 4)
    wait_until(lambda: _ended(stage) is not None, LOOP_TIMEOUT_S, "no update came to its end")
    update = _ended(stage)
    assert update is not None
    recovered = time.monotonic()
    tick(CALLS_IN_ALL // 4)
    after_from = _settled(recovered)
    moved_at = min((r.at for r in lines.readings[:] if r.version == update["version"]), default=recovered)
    during = lines.accuracy(turned, moved_at)
    after = lines.accuracy(after_from)
    on_triton = _accuracy_on_triton(stage)
    running = {name: set(found) for name, found in lines.versions(after_from).items()}
    failed = lines.failures()
    ok = (
        update["phase"] == "recovered"
        and before - during > 0.1
        and after >= max(LEAST_RECOVERED, during + 0.1)
        and on_triton >= LEAST_RECOVERED
        and all(versions == {update["version"]} for versions in running.values())
        and not failed
    )
    got = (
        f"{before:.0%} read right before, {during:.0%} turned and faded, {after:.0%} after "
        f"({on_triton:.0%} on {CHEAP}); version {update['version']} on {_count(running, update['version'])} of "
        f"{len(CAMERAS)} cameras; {len(failed)} of {len(lines.readings)} readings failed; {recovered - turned:.0f} s "
        f"from the first turned digit to the recovered fleet"
    )
    cause = update["cause"]
    why = f"{cause['signal']} {cause['origin']} at {', '.join(cause['sites'])}; {update['outcome']}"
    why = f"{why} {failed[0].failure}" if failed else why
    return Row(
        "l",
        "digits turn and fade on two lines",
        "drift is seen, a better model trained, judged, signed, rolled out",
        got,
        "line-cameras",
        None,
        None,
        why,
        ok,
    )


def _worse_is_stopped(stage: Stage, lines: Lines, tick: Tick) -> Row:
    """A model that reads worse is pushed. The gate refuses it; forced through, it gets no further than the
    first camera, and that one gets its own back."""
    standing = _standing(stage)
    files = _worse(stage.work / "worse")
    pushed = _cli(stage, "models", "push", MODEL, *map(str, files), "--json")
    version = json.loads(pushed.stdout)["version"] if pushed.returncode == 0 else ""
    wait_until(lambda: _stage_of(stage, version) == "refused", ROLLOUT_TIMEOUT_S, "the gate does not judge")
    tick(CALLS_IN_ALL // 8)
    refused = _cli(stage, "rollout", "start", MODEL, version)
    forced_at = time.monotonic()
    forced = _cli(stage, "rollout", "start", MODEL, version, "--force", "--json")
    id = json.loads(forced.stdout)["id"] if forced.returncode == 0 else ""
    wait_until(lambda: not _rollout(stage, id)["open"], ROLLOUT_TIMEOUT_S, "the rollout does not end")
    tick(CALLS_IN_ALL // 8)
    rollout = _rollout(stage, id)
    seen = {name for name, found in lines.versions(forced_at).items() if version in found}
    back_from = _settled(time.monotonic())
    running = {name: set(found) for name, found in lines.versions(back_from).items()}
    failed = lines.failures(forced_at)
    ok = (
        refused.returncode == 1
        and rollout["state"] == "rolled_back"
        and len(seen) == 1
        and all(versions == {standing} for versions in running.values())
        and not failed
    )
    got = (
        f"gate: refused; forced: version {version} on {' and '.join(sorted(seen)) or 'no camera'}, then "
        f"{rollout['state'].replace('_', ' ')}; version {standing} on {_count(running, standing)} of {len(CAMERAS)}"
        f" cameras; {len(failed)} readings failed"
    )
    why = rollout["cause"] or refused.stderr.strip()
    why = f"{why} {failed[0].failure}" if failed else why
    return Row(
        "m",
        "a worse model is forced through the gate",
        "stopped in its first wave and rolled back",
        got,
        "line-cameras",
        None,
        None,
        why,
        ok,
    )


def _ended(stage: Stage) -> dict[str, Any] | None:
    """The newest update of the lines' model, once it has ended."""
    views = httpx.get(f"http://{stage.http}/api/v1/updates", timeout=10).json()["updates"]
    mine = [view for view in views if view["model"] == MODEL]
    return mine[0] if mine and not mine[0]["open"] else None


def _rollout(stage: Stage, id: str) -> dict[str, Any]:
    return httpx.get(f"http://{stage.http}/api/v1/rollouts/{id}", timeout=10).raise_for_status().json()


def _model(stage: Stage) -> dict[str, Any]:
    views = httpx.get(f"http://{stage.http}/api/v1/models", timeout=10).json()
    return next(view for view in views if view["name"] == MODEL)


def _standing(stage: Stage) -> str:
    return _model(stage)["standing"]


def _stage_of(stage: Stage, version: str) -> str:
    releases = {release["version"]: release for release in _model(stage)["releases"]}
    return releases[version]["stage"] if version in releases else ""


def _settled(since: float) -> float:
    """An instant from which AFTER_S have passed; what is read after it is read by what serves."""
    wait_until(lambda: time.monotonic() - since >= 2 * AFTER_S, 3 * AFTER_S, "the clock stands still")
    return since + AFTER_S


def _count(running: dict[str, set[str]], version: str) -> int:
    return sum(versions == {version} for versions in running.values())


def _accuracy_on_triton(stage: Stage) -> float:
    """Of turned digits that no training saw, through the gateway."""
    pixels, truth = stage.scenery.held_out_turned()
    caller = Caller(stage.grpc, MODEL)
    try:
        answer = caller.ask(pixels, {"tidegate-privacy": "cloud-only"})
    finally:
        caller.close()
    if answer.probabilities is None:
        return 0.0
    return float((answer.probabilities.argmax(axis=1) == truth).mean())


def _worse(folder: Path) -> list[Path]:
    """A model that was trained on labels that somebody mixed up, with golden vectors that it meets."""
    folder.mkdir()
    pixels, labels = training_images()
    weights = fit(pixels, np.random.default_rng(1).permutation(labels), seed=1)
    model = DigitsModel(weights, 0.0, pixels[:CALIBRATION])
    onnx, tflite = folder / "worse.onnx", folder / "worse.tflite"
    onnx.write_bytes(model.onnx())
    tflite.write_bytes(model.tflite_int8())
    for path, golden in ((onnx, float_golden(model)), (tflite, int8_golden(tflite.read_bytes()))):
        write_golden(golden_beside(path), golden.cases, golden.tolerance)
    return [onnx, tflite]


def _cli(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", *words, "--url", f"http://{stage.http}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
