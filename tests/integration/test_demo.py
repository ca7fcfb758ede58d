"""`tidegate demo --serve --json` as a user runs it: six rows, then three lines to try."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import httpx
import pytest

STOP_S = 60


@dataclass(frozen=True)
class Played:
    """What the demo printed: the JSON document, and the curl lines of `--serve`."""

    document: dict
    curl: list[str]


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "demo", "--serve", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        else:
            pytest.fail(f"the demo ended: {process.stderr.read()[-3000:]}")
        cut = next(i for i, line in enumerate(lines) if line.startswith("serving HTTP"))
        yield Played(json.loads("".join(lines[:cut])), [line for line in lines if line.startswith("curl")])
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, process.stderr.read()[-3000:]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def replay(line: str) -> httpx.Response:
    """The request of a curl line of ours, without needing curl."""
    words = shlex.split(line)
    url = next(w for w in words if w.startswith("http://"))
    headers = dict(h.split(": ", 1) for flag, h in pairwise(words) if flag == "-H")
    (body,) = (d for flag, d in pairwise(words) if flag == "-d")
    return httpx.post(url, content=body, headers=headers, timeout=20)


def test_six_rows_go_as_they_must(played: Played):
    rows = {row["row"]: row for row in played.document["rows"]}
    assert list(rows) == ["a", "b", "c", "d", "e", "f"]
    assert all(row["ok"] for row in rows.values()), rows
    chosen = {name: row["chosen"] for name, row in rows.items()}
    assert chosen == {
        "a": "dear-fast",
        "b": "cheap-slow",
        "c": "dear-fast",
        "d": "dear-fast",
        "e": "",
        "f": "dear-fast then cheap-slow",
    }
    assert "require.latency_p95_ms" in rows["a"]["why"]
    assert "privacy" in rows["d"]["why"]
    assert rows["b"]["cost_per_1k"] < rows["a"]["cost_per_1k"]
    assert rows["f"]["got"].startswith("0 of 200 failed")


def test_both_servers_were_measured_first(played: Played):
    measured = played.document["measured"]
    assert measured["cheap-slow"]["p50_ms"] > 100
    assert measured["cheap-slow"]["capacity_rps"] < 4 / 0.1
    assert measured["dear-fast"]["p50_ms"] < measured["cheap-slow"]["p50_ms"]


def test_lines_to_try_do_what_they_say(played: Played):
    answer, refusal, dry_run = (replay(line) for line in played.curl)
    assert answer.status_code == 200
    assert answer.headers["tidegate-endpoint"] == "cheap-slow"
    assert answer.json()["outputs"][0]["name"] == "probabilities"
    assert refusal.status_code == 403
    assert "on-site" in refusal.json()["error"]
    assert dry_run.status_code == 200
    assert dry_run.json()["chosen"] == "dear-fast"
