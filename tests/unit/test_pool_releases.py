"""What a pool remembers of the releases that it follows, and which of them may answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.backends._pool_models import PoolModels
from gateway.core.errors import AttemptError
from gateway.pool.inspection import Inspected
from gateway.pool.kept import Kept
from gateway.pool.settings import PoolSettings, VariantSettings
from oip.signature import Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1,)),), ())
FOLLOWING = VariantSettings("m", "", "1", "/m.onnx")
PINNED = VariantSettings("m", "7", "7", "/pinned.onnx")
SETTINGS = PoolSettings("p", "onnxruntime", {"CPU": 1.0}, (FOLLOWING, PINNED))


def test_what_was_served_last_is_served_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "p")
    artifact = tmp_path / "m.onnx"
    artifact.write_bytes(b"one")
    settings = SETTINGS.with_variant(replace(FOLLOWING, artifact=str(artifact)))
    first = kept.served(settings)
    assert [(v.version, v.artifact) for v in first.variants] == [("1", str(artifact)), ("7", "/pinned.onnx")]
    assert first.variants[0].digest.startswith("sha256:7692c3ad3540")
    assert first.variants[1].digest == "", "of a file that cannot be read"

    path, digest = kept.file(b"two")
    served = replace(FOLLOWING, version="2", artifact=str(path), digest=digest)
    kept.serve(served)
    assert Kept(tmp_path, "p").served(settings).variants[0] == served
    assert Kept(tmp_path, "q").served(settings).variants[0] == first.variants[0], "another pool's"

    path.write_bytes(b"bent")
    assert kept.served(settings).variants[0] == first.variants[0]
    assert kept.file(b"two") == (path, digest)
    assert path.read_bytes() == b"two"
    (tmp_path / "pools" / "p" / "served.json").write_text('{"m": 3')
    assert kept.served(settings).variants[0] == first.variants[0]


def test_files_that_nobody_serves_are_swept(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "p")
    kept.sweep(())
    old, _ = kept.file(b"old")
    told, digest = kept.file(b"told")
    running, _ = kept.file(b"running")
    kept.serve(replace(FOLLOWING, version="2", digest=digest))
    kept.deployed("abc", 3)
    kept.sweep([replace(FOLLOWING, artifact=str(running))])
    assert not old.exists()
    assert told.exists()
    assert running.exists()
    assert (kept.attempt("abc"), kept.attempt("other")) == (3, 0)


def test_the_fingerprint_tells_what_replicas_run_not_where_it_lies() -> None:
    known = SETTINGS.with_variant(replace(FOLLOWING, digest="sha256:1"))
    assert known.fingerprint == known.with_variant(replace(known.variants[0], artifact="/kept")).fingerprint
    others = [
        replace(known.variants[0], digest="sha256:2"),
        replace(known.variants[0], version="2"),
    ]
    assert len({known.fingerprint, *(known.with_variant(other).fingerprint for other in others)}) == 3
    assert SETTINGS.fingerprint != SETTINGS.with_variant(replace(FOLLOWING, artifact="/n")).fingerprint


def models() -> PoolModels:
    found = PoolModels(SETTINGS)
    for variant in SETTINGS.variants:
        found.seen(variant, Inspected(f"sha256:{variant.version}", SIGNATURE), 0.0)
    return found


def test_while_replicas_are_replaced_two_releases_answer() -> None:
    pool = models()
    key = pool.key("m", "")
    assert (key, pool.key("m", "7"), pool.key("m", "1")) == (("m", ""), ("m", "7"), ("m", ""))
    assert pool.accepted(key, "") == {"1": "sha256:1"}
    pool.move(replace(FOLLOWING, version="2", digest="sha256:2"), Inspected("sha256:2", SIGNATURE))
    assert pool.versions(key) == ("1", "2")
    assert pool.accepted(key, "") == {"1": "sha256:1", "2": "sha256:2"}
    assert pool.accepted(pool.key("m", "1"), "1") == {"1": "sha256:1"}
    pool.moved()
    assert pool.versions(key) == ("2",)
    assert pool.accepted(key, "") == {"2": "sha256:2"}
    for ask in (lambda: pool.key("m", "1"), lambda: pool.accepted(key, "1")):
        with pytest.raises(AttemptError, match="'m' version '1' is not found") as caught:
            ask()
        assert caught.value.retryable
    assert pool.accepted(("m", "7"), "") == {"7": "sha256:7"}


def test_a_move_that_fails_goes_back() -> None:
    pool = models()
    assert pool.move_back(("m", "")) is None
    pool.move(replace(FOLLOWING, version="2", digest="sha256:2"), Inspected("sha256:2", SIGNATURE))
    back = pool.move_back(("m", ""))
    assert back is not None
    assert (back.version, pool.variant(("m", "")).version) == ("1", "1")
    assert set(pool.accepted(("m", ""), "")) == {"1", "2"}, "a replica of the failed one may still be there"
    pool.moved()
    assert pool.accepted(("m", ""), "") == {"1": "sha256:1"}
