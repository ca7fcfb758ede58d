"""What a pool's replicas are told when they are made. Plain data: it travels between processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from gateway.core.config import Batching, Config
from gateway.core.config.models import FIRST_VERSION
from gateway.pool.config import PoolConfig

APP_PREFIX = "tidegate-pool-"
DEPLOYMENT = "Pool"

Key = tuple[str, str]
"""A model of a pool: its name there, and the version that the file keeps it at, "" for one that follows
releases."""


@dataclass(frozen=True, slots=True)
class VariantSettings:
    """One model of a pool: the version that it answers with, and the file to run. `pinned` as in Key.
    `digest` is the file's, "" where it was not looked at."""

    model: str
    pinned: str
    version: str
    artifact: str
    batching: Batching | None = None
    digest: str = ""

    @property
    def key(self) -> Key:
        return self.model, self.pinned


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One pool. `resources` are what each replica has of the machine."""

    name: str
    runtime: str
    resources: Mapping[str, float]
    variants: tuple[VariantSettings, ...]

    @property
    def fingerprint(self) -> str:
        """The same for settings that make the same replicas, wherever their files lie."""
        variants = [
            {**asdict(v), "artifact": "" if v.digest else v.artifact, "batching": repr(v.batching)}
            for v in self.variants
        ]
        told = json.dumps([self.runtime, dict(self.resources), variants], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def with_variant(self, variant: VariantSettings) -> PoolSettings:
        """The same with one model's settings replaced."""
        return replace(self, variants=tuple(variant if v.key == variant.key else v for v in self.variants))


def app_name(pool: str) -> str:
    """The pool's application on Ray Serve."""
    return APP_PREFIX + pool


def pools_of(config: Config) -> Iterator[PoolConfig]:
    """Every pool of the file, in its order."""
    for endpoint in config.endpoints:
        if isinstance(endpoint, PoolConfig):
            yield endpoint


def settings_of(config: Config, pool: PoolConfig) -> PoolSettings:
    """What the file has the pool run. Raises ValueError, with a sentence, for a variant without an artifact
    and for two files under one name and version."""
    found: dict[Key, VariantSettings] = {}
    for model in config.models:
        for variant in model.variants:
            if variant.endpoint != pool.name:
                continue
            name, version = variant.model or model.name, variant.version or FIRST_VERSION
            if variant.artifact is None:
                raise ValueError(f"Model {name} on pool {pool.name} has no artifact: name its file.")
            wanted = VariantSettings(name, variant.version or "", version, variant.artifact, variant.batching)
            if found.setdefault(wanted.key, wanted) != wanted:
                raise ValueError(
                    f"Pool {pool.name} is given two different files or batchings for {name} version {version}: "
                    "give each a version of its own."
                )
    return PoolSettings(pool.name, pool.runtime, dict(pool.resources), tuple(found.values()))
