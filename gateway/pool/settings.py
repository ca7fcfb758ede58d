"""What a pool's replicas are told when they are made. Plain data: it travels between processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.core.config import Batching, Config
from gateway.pool.config import PoolConfig

APP_PREFIX = "tidegate-pool-"
DEPLOYMENT = "Pool"


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """One model of a pool: its name and version there, and the file to run."""

    model: str
    version: str
    artifact: str
    batching: Batching | None = None


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One pool. `resources` are what each replica has of the machine."""

    name: str
    runtime: str
    resources: Mapping[str, float]
    variants: tuple[VariantSettings, ...]


def app_name(pool: str) -> str:
    """The pool's application on Ray Serve."""
    return APP_PREFIX + pool


def pools_of(config: Config) -> Iterator[PoolConfig]:
    """Every pool of the file, in its order."""
    for endpoint in config.endpoints:
        if isinstance(endpoint, PoolConfig):
            yield endpoint


def settings_of(config: Config, pool: PoolConfig) -> PoolSettings:
    """What the pool is to run. Raises ValueError, with a sentence, for a variant without an artifact
    and for two files under one name and version."""
    found: dict[tuple[str, str], VariantSettings] = {}
    for model in config.models:
        for variant in model.variants:
            if variant.endpoint != pool.name:
                continue
            name, version = variant.model or model.name, variant.served_version or ""
            if variant.artifact is None:
                raise ValueError(f"Model {name} on pool {pool.name} has no artifact: name its file.")
            wanted = VariantSettings(name, version, variant.artifact, variant.batching)
            if found.setdefault((name, version), wanted) != wanted:
                raise ValueError(
                    f"Pool {pool.name} is given two different files or batchings for {name} version {version}: "
                    "give each a version of its own."
                )
    return PoolSettings(pool.name, pool.runtime, dict(pool.resources), tuple(found.values()))
