"""The demo's rows, and the lines to try that `--serve` prints."""

from __future__ import annotations

import shlex
from itertools import pairwise

import httpx

from tests.demo.played import Played


def replay(line: str) -> httpx.Response:
    """The request of a curl line of ours, without needing curl."""
    words = shlex.split(line)
    url = next(w for w in words if w.startswith("http://"))
    headers = dict(h.split(": ", 1) for flag, h in pairwise(words) if flag == "-H")
    (body,) = (d for flag, d in pairwise(words) if flag == "-d")
    return httpx.post(url, content=body, headers=headers, timeout=20)


def test_every_row_goes_as_it_must(played: Played):
    rows = {row["row"]: row for row in played.document["rows"]}
    assert list(rows) == list("abcdefghijklm")
    assert [(r["row"], r["got"], r["why"]) for r in rows.values() if not r["ok"]] == []
    chosen = {name: row["chosen"] for name, row in rows.items()}
    assert chosen == {
        "a": "dear-fast",
        "b": "cheap-slow",
        "c": "dear-fast",
        "d": "dear-fast",
        "e": "",
        "f": "dear-fast then cheap-slow",
        "g": "cameras",
        "h": "cameras",
        "i": "cameras",
        "j": "server-room",
        "k": "cameras",
        "l": "line-cameras",
        "m": "line-cameras",
    }
    assert "require.latency_p95_ms" in rows["a"]["why"]
    assert "privacy" in rows["d"]["why"]
    assert rows["b"]["cost_per_1k"] < rows["a"]["cost_per_1k"]
    assert rows["f"]["got"].startswith("0 of 200 failed")
    assert "; 0 of 7680 payload bytes left the site (of a public request 256 of 256)" in rows["g"]["got"]
    assert "cam-7b is away" in rows["h"]["why"]
    assert rows["k"]["got"].startswith("0 of 200 failed")


def test_both_servers_were_measured_first(played: Played):
    measured = played.document["measured"]
    assert measured["cheap-slow"]["p50_ms"] > 100
    assert measured["cheap-slow"]["capacity_rps"] < 4 / 0.1
    assert measured["dear-fast"]["p50_ms"] < measured["cheap-slow"]["p50_ms"]


def test_lines_to_try_do_what_they_say(played: Played):
    answer, refusal, dry_run, at_the_plant = (replay(line) for line in played.curl)
    assert answer.status_code == 200
    assert answer.headers["tidegate-endpoint"] == "cheap-slow"
    assert answer.json()["outputs"][0]["name"] == "probabilities"
    assert refusal.status_code == 403
    assert "on-site" in refusal.json()["error"]
    assert dry_run.status_code == 200
    assert dry_run.json()["chosen"] == "dear-fast"
    assert at_the_plant.status_code == 200
