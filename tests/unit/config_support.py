"""An endpoint kind like the real one, and short ways to read a text and to damage a good file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from gateway.core.config import Config, DiscoverConfig, EndpointConfig, PlacedConfig
from gateway.core.config.basis import Strict
from gateway.core.config.load import parse_config
from gateway.core.config.problems import ConfigError

DATA = Path(__file__).parent.parent / "data" / "config"
GOOD = (DATA / "good.yaml").read_text(encoding="utf-8")


class Tls(Strict):
    ca_file: str


class TritonLike(PlacedConfig):
    kind: Literal["triton"]
    url: str = Field(min_length=1)
    tls: Tls | None = None
    discover: DiscoverConfig | None = None

    @property
    def discovers(self) -> str | None:
        return None if self.discover is None else self.discover.privacy


class PoolLike(PlacedConfig):
    kind: Literal["pool"]
    runtime: str = "onnxruntime"
    resources: dict[str, float] = Field(default_factory=dict)
    replicas: dict[str, int] = Field(default_factory=dict)


class Select(Strict):
    site: tuple[str, ...] | None = Field(default=None, strict=False)
    labels: dict[str, list[str]] = Field(default_factory=dict)


class EdgeLike(EndpointConfig):
    kind: Literal["edge"]
    select: Select = Select()


KINDS: dict[str, type[EndpointConfig]] = {"triton": TritonLike}
ALL_KINDS: dict[str, type[EndpointConfig]] = {**KINDS, "pool": PoolLike, "edge": EdgeLike}


def parsed(text: str, environ: dict[str, str] | None = None, base: Path = DATA) -> Config:
    return parse_config(text, "t.yaml", KINDS, environ or {}, base)


def problems(
    text: str,
    environ: dict[str, str] | None = None,
    base: Path = DATA,
    kinds: dict[str, type[EndpointConfig]] = KINDS,
) -> list[str]:
    """Every problem of a text, as lines."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "t.yaml", kinds, environ or {}, base)
    return str(caught.value).splitlines()


def changed(old: str, new: str) -> str:
    """The good file with one passage replaced."""
    assert GOOD.count(old) == 1, f"{old!r} stands {GOOD.count(old)} times in the good file"
    return GOOD.replace(old, new)
