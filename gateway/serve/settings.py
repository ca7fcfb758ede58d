"""What a data plane replica is told when it is made. Plain data: it travels between processes."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.core.config import Config


class Address(NamedTuple):
    """Where a listener binds; port 0 picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`127.0.0.1:8080` or `[::1]:8080`. Raises ValueError with what is right."""
        host, colon, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
                raise ValueError
            ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            raise ValueError(f"{text!r} is not an address: give IP:PORT, such as 127.0.0.1:8080") from None
        return cls("127.0.0.1" if host == "localhost" else host, int(port))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway listens; `edge` is None for one without an edge endpoint."""

    http: Address
    grpc: Address
    metrics: Address
    edge: Address | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """`revision` identifies `config`; `state_dir` holds the stored profiles. `homes` is the path of the socket
    where control tells of sequences, None for a replica that is alone; `inside` that of the hub's inner socket,
    None without an edge endpoint."""

    config: Config
    revision: str
    listen: Listen
    state_dir: Path
    drain_s: float = 20.0
    homes: Path | None = None
    inside: Path | None = None

    @property
    def shared(self) -> bool:
        """Whether other replicas listen at the same addresses."""
        return self.config.gateway.replicas.max > 1

    @property
    def folder(self) -> Path | None:
        """Where replicas of this gateway take turns; None for one that is alone."""
        return self.homes.parent if self.shared and self.homes is not None else None


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What the edge hub is told: where devices connect, and the path of its inner socket. `state_dir` holds
    released artifacts, where the configuration names no other store."""

    config: Config
    listen: Address
    inside: Path
    state_dir: Path
