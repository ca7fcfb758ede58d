"""What operators see of several replicas: one gateway, with whatever any of them finds wrong."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.serve import merged_views


def stats(count: int, last: int, version: str = "1") -> dict[str, Any]:
    batch = {"batch_size": 4, "compute_infer": {"count": count, "ns": 10 * count}}
    return {
        "name": "m",
        "version": version,
        "last_inference": last,
        "inference_count": count,
        "inference_stats": {"success": {"count": count, "ns": 5 * count}},
        "batch_stats": [batch],
    }


def view(kind: str = "triton", **changes: Any) -> dict[str, Any]:
    model = {
        "model": "m",
        "version": None,
        "versions": ["1"],
        "ready": True,
        "latency": {"p50_ms": 1.0, "samples": 3},
        "statistics": [stats(2, 100)],
    }
    model |= {key: changes.pop(key) for key in list(changes) if key in model}
    return {"name": "e", "kind": kind, "up": True, "detail": "", "models": [model], **changes}


def test_what_one_replica_finds_wrong_is_wrong() -> None:
    (found,) = merged_views.endpoints(
        [[view()], [view(up=False, detail="it is down", ready=False, versions=["2", "10"], latency=None)]]
    )
    (model,) = found["models"]
    assert (found["up"], found["detail"], model["ready"]) == (False, "it is down", False)
    assert model["versions"] == ["1", "2", "10"]
    assert model["latency"] == {"p50_ms": 1.0, "samples": 3}


def test_a_model_that_one_replica_has_not_discovered_yet_is_not_ready() -> None:
    (found,) = merged_views.endpoints([[view()], [view() | {"models": []}]])
    assert [model["ready"] for model in found["models"]] == [False]


@pytest.mark.parametrize(("kind", "count"), [("pool", 7), ("edge", 7), ("triton", 2), ("gateway", 2)])
def test_what_is_counted_here_adds_up_and_what_is_counted_there_does_not(kind: str, count: int) -> None:
    parts = [
        [view(kind)],
        [view(kind, statistics=[stats(5, 50), stats(1, 7, "2")])],
        [view(kind, statistics=None)],
    ]
    ((first, *others),) = [
        model["statistics"] for e in merged_views.endpoints(parts) for model in e["models"]
    ]
    assert (first["inference_count"], first["last_inference"]) == (count, 100)
    assert first["inference_stats"]["success"] == {"count": count, "ns": 5 * count}
    assert first["batch_stats"] == [{"batch_size": 4, "compute_infer": {"count": count, "ns": 10 * count}}]
    assert [other["version"] for other in others] == (["2"] if count == 7 else [])


def test_a_variant_is_ready_where_every_replica_has_it_so() -> None:
    def model(ready: bool) -> dict[str, Any]:
        return {"name": "m", "variants": [{"endpoint": "e", "versions": ["1"], "ready": ready}]}

    other = {"name": "new", "variants": []}
    first, second = merged_views.models([[model(True)], [model(False), other]])
    assert [variant["ready"] for variant in first["variants"]] == [False]
    assert second == other
    (both,) = merged_views.models([[model(True)], [model(True)]])
    assert both["variants"][0]["ready"]
