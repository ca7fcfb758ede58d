"""Names in requests: how messages show them, and the parameter keys that no caller may set."""

from __future__ import annotations

from oip.errors import OipError
from oip.reasons import Reason

SHARED_MEMORY_KEYS = frozenset({"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"})
_LONGEST_SHOWN = 64


def shown(name: str) -> str:
    """A caller's name for a message: quoted, control characters escaped, at most 64 characters of it."""
    return repr(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "...")


def refuse_option(key: str) -> None:
    """Raise BAD_OPTION when `key` is a gateway option, which travels as a header or metadata.

    `tidegate-x`, `tidegate_x` and any mixture of case are the same option.
    """
    option = key.lower().replace("_", "-")
    if option.startswith("tidegate-"):
        raise OipError(
            Reason.BAD_OPTION,
            f"Parameter {shown(key)} is a request option: send it as the header (gRPC: metadata) "
            f"{shown(option)[1:-1]}.",
        )


def refuse_tensor_key(key: str) -> None:
    """Raise when a tensor's parameter `key` may not be served.

    NOT_SERVED for shared memory: the gateway is remote to the caller's, and an endpoint that
    shares a host with another tenant would read that tenant's. BAD_OPTION as in `refuse_option`.
    """
    if key in SHARED_MEMORY_KEYS:
        raise OipError(
            Reason.NOT_SERVED,
            f"Parameter {shown(key)} asks for shared memory, which a remote gateway cannot honour: "
            "send the tensor's data in the request.",
        )
    refuse_option(key)
