"""What the file may say of a pool, and what becomes of it on Ray."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.core.config import Batching, Config
from gateway.pool.config import PoolConfig
from gateway.pool.settings import PoolSettings, VariantSettings, settings_of
from tests.support.configs import config_from
from tests.support.processes import source_env

GOOD: dict[str, Any] = {
    "name": "accel",
    "kind": "pool",
    "runtime": "openvino",
    "location": {"tier": "cloud"},
}


def _pool(**keys: object) -> PoolConfig:
    return PoolConfig.model_validate({**GOOD, **keys})


def _config(*variants: dict[str, object]) -> Config:
    return config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": {"tier": "cloud"}},
            "endpoints": [_pool()],
            "models": [{"name": "m", "variants": list(variants)}],
            "privacy": {"default": "open", "classes": {"open": {"allow": [{"tier": ["cloud"]}]}}},
            "policies": [{"name": "default", "match": {}, "weights": {"latency": 1}}],
        }
    )


def test_a_pool_that_says_little_has_one_cpu_and_starts_from_zero():
    pool = _pool()
    assert pool.resources == {"CPU": 1.0}
    assert (pool.replicas.min, pool.replicas.max) == (0, 1)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"runtime": "jax"}, "runtime jax is not served by this version"),
        ({"runtime": "torch"}, "openvino"),
        ({"replicas": {"min": 3, "max": 2}}, r"replicas.min \(3\) is above replicas.max \(2\)"),
        ({"replicas": {"min": -1}}, "greater than or equal to 0"),
        ({"replicas": {"max": 0}}, "greater than or equal to 1"),
        ({"replicas": {"target_ongoing": 0}}, "greater than 0"),
        ({"resources": {}}, "at least 1"),
        ({"resources": {"CPU": 0}}, "greater than 0"),
        ({"resources": {"GPU": 1.5}}, "resources.GPU must be a whole number above 1, not 1.5"),
        ({"resources": {"memory": 1}}, "resources.memory cannot be asked for here"),
        ({"resources": {"a b": 1}}, "pattern"),
    ],
)
def test_what_cannot_be_meant_is_refused(keys: dict[str, object], says: str):
    with pytest.raises(ValidationError, match=says):
        _pool(**keys)


def test_parts_of_a_gpu_and_own_resources_are_welcome():
    assert _pool(resources={"GPU": 0.25, "rack.tpu": 2}).resources == {"GPU": 0.25, "rack.tpu": 2}


def test_the_configuration_is_read_without_ray_or_a_runtime():
    look = "import sys, gateway.pool.config; print([m for m in ('ray', 'openvino', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", look], env=source_env(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_variants_become_what_replicas_run():
    config = _config(
        {"endpoint": "accel", "artifact": "/m.onnx"},
        {
            "endpoint": "accel",
            "artifact": "/n.onnx",
            "model": "n",
            "version": "3",
            "batching": {"max_size": 4},
        },
    )
    assert settings_of(config, _pool()) == PoolSettings(
        "accel",
        "openvino",
        {"CPU": 1.0},
        (
            VariantSettings("m", "", "1", "/m.onnx"),
            VariantSettings("n", "3", "3", "/n.onnx", Batching(max_size=4)),
        ),
    )


@pytest.mark.parametrize(
    ("variants", "says"),
    [
        ([{"endpoint": "accel"}], "Model m on pool accel has no artifact"),
        (
            [{"endpoint": "accel", "artifact": "/a", "weight": 2}, {"endpoint": "accel", "artifact": "/b"}],
            "two different files or batchings for m version 1",
        ),
    ],
)
def test_variants_that_make_no_sense_on_a_pool(variants: list[dict[str, object]], says: str):
    with pytest.raises(ValueError, match=says):
        settings_of(_config(*variants), _pool())


def test_what_a_replica_asks_of_ray():
    import tests.support.quiet_ray  # noqa: F401
    from gateway.pool.deploy import actor_options, ongoing

    assert actor_options({"CPU": 2, "GPU": 0.5}) == {"num_cpus": 2, "num_gpus": 0.5}
    assert actor_options({"TPU": 1}) == {"num_cpus": 0, "num_gpus": 0, "resources": {"TPU": 1}}
    pool = _pool(replicas={"max": 1, "target_ongoing": 2.5})
    plain = PoolSettings("accel", "openvino", {}, (VariantSettings("m", "", "1", "/m"),))
    wide = PoolSettings(
        "accel", "openvino", {}, (VariantSettings("m", "", "1", "/m", Batching(max_size=16)),)
    )
    assert (ongoing(pool, plain), ongoing(pool, wide)) == (5, 32)
