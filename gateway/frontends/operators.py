"""Who is an operator while none are configured: everyone on this machine, and nobody else.

Neither is one whom a proxy on this machine speaks for, nor a page that a browser on this machine was led to
(its Origin is elsewhere, or a name of its own leads here and is in Host).
"""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote, urlsplit

from gateway.core.call import Metadata
from gateway.core.errors import Refusal
from oip.reasons import Reason

_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})


def refuse_stranger(client: str, metadata: Metadata) -> None:
    """`client` is the caller's IP address, "" where it has none that is known. Raises Refusal."""
    fault = _fault(client, metadata)
    if fault:
        raise Refusal(
            Reason.FORBIDDEN,
            f"operator calls are served to loopback only while no operators are configured, and {fault}",
        )


def grpc_client(peer: str) -> str:
    """The IP address in what gRPC calls a peer, such as `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    kind, _, address = peer.partition(":")
    return unquote(address).rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


def _fault(client: str, metadata: Metadata) -> str:
    """What about a call says that it is not from an operator on this machine; "" when nothing does."""
    if not _is_loopback(client):
        return "this one comes from elsewhere"
    for name, value in metadata:
        text = value if isinstance(value, str) else value.decode("latin-1")
        if name in _PROXY_HEADERS or name.startswith("x-forwarded-"):
            return f"this one was forwarded ({name})"
        if name == "host" and not _is_loopback(_host_in(f"//{text}")):
            return "its Host is not loopback: use 127.0.0.1 or localhost"
        if name == "origin" and not _is_loopback(_host_in(text)):
            return "its Origin is not loopback"
    return ""


def _host_in(url: str) -> str:
    try:
        parts = urlsplit(url)
        return "" if "@" in parts.netloc else parts.hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
