"""A configuration from plain data, its endpoints of no particular kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.config import Config, EndpointConfig, PlacedConfig


def config_from(sections: Mapping[str, Any]) -> Config:
    """`sections` are the file's. An endpoint given as a mapping is one in a place; one that is already
    of its kind stays."""
    endpoints = [
        e if isinstance(e, EndpointConfig) else PlacedConfig.model_validate(e) for e in sections["endpoints"]
    ]
    return Config.model_validate({**sections, "endpoints": endpoints})
