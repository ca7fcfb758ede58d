"""Addresses on the command line. Everything stays on loopback: nothing here is encrypted yet."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """A host on loopback and a port; port 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, option: str) -> Address:
    """`127.0.0.1:8090`, `[::1]:8090` or `localhost:8090`. Raises ValueError with what is right."""
    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{option} {text!r} is not an address: give HOST:PORT, such as 127.0.0.1:8090")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{option} {text!r} is beyond loopback, and this version encrypts nothing:"
            + (
                " reach a hub on another machine through a tunnel, such as ssh -L"
                if option == "--hub"
                else " give an address such as 127.0.0.1:8090"
            )
        )
    return Address(host, int(port))


def parse_hubs(text: str) -> tuple[str, ...]:
    """`H:P[,H:P]`. Raises ValueError."""
    hubs = [parse_address(part, "--hub") for part in text.split(",")]
    if any(not hub.port for hub in hubs):
        raise ValueError("--hub needs the hub's port, such as 127.0.0.1:8082")
    return tuple(dict.fromkeys(str(hub) for hub in hubs))
