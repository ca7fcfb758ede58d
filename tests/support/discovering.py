"""The places of `tests.support.fakes.config_of`, whose models are to be discovered."""

from __future__ import annotations

from gateway.backends._address import DiscoveringConfig
from gateway.core.config import Config
from tests.support.fakes import config_of


def place(name: str, location: dict[str, str], privacy: str | None) -> DiscoveringConfig:
    discover = None if privacy is None else {"privacy": privacy}
    return DiscoveringConfig.model_validate(
        {"name": name, "kind": "fake", "url": "grpc://h:1", "location": location, "discover": discover}
    )


def discovering(site: str | None = "public", cloud: str | None = None, far: str | None = None) -> Config:
    """The places of `config_of`, in which class each is to be discovered."""
    return config_of(
        endpoints=[
            place("site", {"tier": "site", "site": "s1"}, site),
            place("cloud", {"tier": "cloud", "region": "eu"}, cloud),
            place("far", {"tier": "cloud", "region": "us"}, far),
        ]
    )
