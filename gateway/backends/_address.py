"""Where an endpoint that speaks OIP over gRPC is reached. Reading it imports no gRPC."""

from __future__ import annotations

from typing import ClassVar, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from gateway.core.config import DiscoverConfig, PlacedConfig
from gateway.core.config.basis import Strict


class TlsConfig(Strict):
    """Paths of PEM files. Without `ca_file` the system's roots count; `cert_file` and `key_file`
    are this gateway's own, for a server that asks for them."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together: give both or neither")
        return self


class AddressedConfig(PlacedConfig):
    """`url` is grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""

    port_hint: ClassVar[str] = ""
    """What to add where a port is missing."""

    url: str
    tls: TlsConfig | None = None

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        form = "give grpc://HOST:PORT, or grpcs://HOST:PORT for TLS"
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            raise ValueError(f"{form}: the port must be a number from 1 to 65535") from None
        if parts.scheme not in ("grpc", "grpcs"):
            raise ValueError(f"{form}: the scheme is {parts.scheme!r}" if parts.scheme else form)
        if not parts.hostname:
            raise ValueError(f"{form}: the host is missing")
        if not port:
            raise ValueError(f"{form}: the port is missing{cls.port_hint}")
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{form}, with nothing before the host or after the port")
        return value

    @model_validator(mode="after")
    def _tls_needs_grpcs(self) -> Self:
        if self.tls is not None and not self.url.startswith("grpcs://"):
            raise ValueError("tls is given, but url is not grpcs://")
        return self

    @property
    def target(self) -> str:
        """HOST:PORT as gRPC takes it."""
        return urlsplit(self.url).netloc

    @property
    def secure(self) -> bool:
        return self.url.startswith("grpcs://")


class DiscoveringConfig(AddressedConfig):
    """A server that may be asked which models it has."""

    not_identity: ClassVar[frozenset[str]] = frozenset({"discover"})

    discover: DiscoverConfig | None = None
    """Offer every model that it has, under its own name, in a class; an entry under `models` wins."""

    @property
    def discovers(self) -> str | None:
        return None if self.discover is None else self.discover.privacy
