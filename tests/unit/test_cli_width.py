"""What people read stays readable on a terminal of usual width."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli import demo
from gateway.cli.route import show
from gateway.demo.row import Row

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
