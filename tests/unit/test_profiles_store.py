"""Stored measurements: merged, replaced as a whole, read strictly."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gateway.store.profiles import Profile, ProfileError, ProfileStore

FIRST = Profile("gpu", "digits", "3", 1.7e9, 1.5, 2.5, 400.0, 200, 300.0, 80.0, "aa")
OTHER = Profile("cpu", "digits", "", 1.7e9, 20.0, 25.0, 90.5, 60, 300.0, 80.0, "bb")


def test_nothing_is_stored_before_the_first_save(tmp_path: Path):
    store = ProfileStore(tmp_path / "new")
    assert store.load() == ()
    assert store.change_token() is None


def test_what_is_saved_comes_back_and_merges_by_variant(tmp_path: Path):
    store = ProfileStore(tmp_path / "new" / "state")
    store.save([FIRST])
    store.save([OTHER])
    newer = replace(FIRST, latency_p50_ms=9.0, latency_p95_ms=9.5)
    other_version = replace(FIRST, version="4")
    store.save([newer, other_version])
    assert ProfileStore(store.path.parent).load() == (OTHER, newer, other_version)


def test_the_token_changes_with_every_write_and_only_then(tmp_path: Path):
    store = ProfileStore(tmp_path)
    store.save([FIRST])
    token = store.change_token()
    assert token is not None
    store.load()
    assert store.change_token() == token
    store.save([FIRST])
    assert store.change_token() != token


def _with(**changes: object) -> str:
    return json.dumps({"version": 1, "profiles": [{**asdict(FIRST), **changes}]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ('{"version": 1, "profiles": [', "Expecting"),
        ("[]", "not an object"),
        ('{"version": 1}', "exactly"),
        ('{"version": 2, "profiles": []}', "version 2"),
        ('{"version": 1, "profiles": {}}', "not a list"),
        ('{"version": 1, "profiles": [1]}', r"profiles\[0\] is not an object"),
        (_with(extra=1), "missing or unknown: extra"),
        (_with(endpoint=None), "endpoint is not text"),
        (_with(latency_p50_ms="1"), "latency_p50_ms is not a number"),
        (_with(latency_p50_ms=True), "latency_p50_ms is not a number"),
        (_with(latency_p95_ms=float("nan")), "latency_p95_ms is not a number"),
        (_with(capacity_rps=0), "capacity_rps is 0, which is too small"),
        (_with(measured_at=-1), "measured_at is -1, which is too small"),
        (_with(samples=1.5), "samples is not a whole number"),
        (
            json.dumps({"version": 1, "profiles": [asdict(FIRST), asdict(FIRST)]}),
            "two profiles of one variant",
        ),
    ],
)
def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, text: str, says: str):
    store = ProfileStore(tmp_path)
    store.path.write_text(text)
    with pytest.raises(ProfileError, match=says) as caught:
        store.load()
    assert str(store.path) in str(caught.value)
    with pytest.raises(ProfileError):
        store.save([OTHER])
    assert store.path.read_text() == text


def test_a_file_that_is_not_text_is_named(tmp_path: Path):
    store = ProfileStore(tmp_path)
    store.path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match=r"profiles\.json: cannot be read"):
        store.load()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = ProfileStore(tmp_path)
    store.save([FIRST])

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        store.save([OTHER])
    assert store.load() == (FIRST,)
    assert {p.name for p in tmp_path.iterdir()} == {"profiles.json", "profiles.lock"}


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path):
    def write(number: int) -> None:
        ProfileStore(tmp_path).save([replace(FIRST, endpoint=f"e{number:02}")])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [p.endpoint for p in ProfileStore(tmp_path).load()] == [f"e{n:02}" for n in range(12)]
