"""What people read stays readable on a terminal of usual width."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli import demo, models, rollout, updates
from gateway.cli.common import clock
from gateway.cli.main import run
from gateway.cli.route import show
from gateway.core.config import RolloutConfig
from gateway.demo.row import Row
from gateway.rollout.view import view_of
from tests.support.simrollout import SimRollout, fleet

WHY = "class 'personal' does not allow this place"
CANDIDATE = {
    "endpoint": "server-room",
    "tier": "regional",
    "verdict": "excluded",
    "reasons": [{"rule": "privacy", "detail": WHY}],
    "predicted": {"latency_p50_ms": 131.75, "latency_p95_ms": 131.75, "cost": 1e-05},
    "scores": {},
}
RECORD = {"model": "digits", "privacy": "p", "policy": "d", "chosen": "cameras", "candidates": [CANDIDATE]}


@pytest.mark.parametrize("width", ["80", "100", "140"])
def test_route_keeps_names_and_reasons_in_one_piece(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", width)
    show(RECORD)
    shown = capsys.readouterr().out
    assert f"privacy: {WHY}" in shown
    assert " server-room " in shown


@pytest.mark.parametrize("width", ["80", "120", "200"])
def test_demo_rows_keep_their_sentences(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr(os, "isatty", lambda number: True)
    row = Row(
        "h", "one", "the same device", "UNAVAILABLE", "cameras", 1.0, 0.0, "device cam-7b is away", True
    )
    demo._print([row], cast(Any, SimpleNamespace(profiles=[])), False)
    shown = capsys.readouterr().out
    assert "device cam-7b is away" in shown
    assert "cameras (the devices cam-7a and cam-7b)" in " ".join(shown.split())


WIDTHS = ["40", "80", "140"]
RELEASE = {
    "version": "2", "stage": "withdrawn", "standing": False, "order": 4, "source": "u3",
    "places": "tier=device+site;site=plant-7", "metrics": {"trainer.accuracy": 0.9861},
    "files": {"tflite": {"size": 8200, "digest": f"sha256:{'0d4f' * 16}", "golden": None}},
}  # fmt: skip
CAUSE = {"origin": "drift", "signal": "output.confidence", "score": 3.37, "threshold": 0.2, "sites": ["p"]}
WHAT = "halted: p95 latency is 10.2 ms against 2.15 ms of the old version, which reaches 1.3 times"
UPDATE = {
    "id": "u3", "model": "digits", "phase": "rolled back", "open": False, "cause": CAUSE, "began_at": 0.0,
    "version": "2", "outcome": WHAT, "waits_for": None,
}  # fmt: skip
WATCH = {
    "model": "digits", "signal": "output.confidence", "phase": "drifting", "score": 3.1, "threshold": 0.2,
    "values": 900, "min_samples": 500, "history": [], "quiet_until": None, "trains": True,
}  # fmt: skip


def answered(monkeypatch: pytest.MonkeyPatch, module: Any, answer: Any) -> None:
    monkeypatch.setattr(module, "call_operator", lambda *_: answer)


@pytest.mark.parametrize("width", WIDTHS)
def test_releases_keep_their_digests(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", width)
    answered(monkeypatch, models, [{"name": "digits", "releases": [RELEASE], "differences": []}])
    assert run(["models", "show", "digits"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "digits version 2: withdrawn"
    assert f"sha256:{'0d4f' * 16}" in lines
    assert "may go to  tier=device+site;site=plant-7" in lines
    assert "tflite     8 kB, without golden vectors" in lines


@pytest.mark.parametrize("width", WIDTHS)
def test_what_came_of_updates_and_rollouts_is_one_line_in_a_file(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", width)
    answered(monkeypatch, updates, {"watches": [WATCH], "updates": [UPDATE]})
    assert run(["updates", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"    {WHAT}"
    assert lines[-2].startswith("u3  digits  rolled back  version 2, began ")
    assert lines[-2].endswith(" by output.confidence 3.37 of 0.2 at p")
    view = view_of(SimRollout(fleet(10, breaks=True), RolloutConfig()).run().state)
    answered(monkeypatch, rollout, [view])
    assert run(["rollout", "status"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{view['id']}  digits: version 1 to 2  halted  ")
    assert second == f"    {view['cause']}"


def test_a_drift_that_nothing_is_done_about_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "80")

    def shown(updates_of: Any = (), **watch: Any) -> str:
        answered(monkeypatch, updates, {"watches": [WATCH | watch], "updates": list(updates_of)})
        assert run(["updates", "list"]) == 0
        return " ".join(capsys.readouterr().out.split())

    later = time.time() + 3600
    assert f"begins no other before {clock(later)}: `tidegate updates start digits` does" in shown(
        quiet_until=later
    )
    assert "has no `train`" in shown(trains=False)
    for silent in (
        shown(),
        shown(quiet_until=later - 7200),
        shown(quiet_until=later, phase="steady"),
        shown([UPDATE | {"open": True}], quiet_until=later),
    ):
        assert "begins no other" not in silent
        assert "no `train`" not in silent
