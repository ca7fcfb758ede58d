"""Names in requests: how messages show them, and the parameter keys that no caller may set."""

from __future__ import annotations

import re

from oip.errors import OipError
from oip.reasons import Reason

SHARED_MEMORY_KEYS = frozenset({"shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"})
_LONGEST_SHOWN = 64
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_LAST_VERSION = 2**63 - 1


def shown(name: str) -> str:
    """A caller's name for a message: quoted, control characters escaped, at most 64 characters of it."""
    return repr(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "...")


def version_fault(version: str) -> str | None:
    """Why no model has such a version; "" is none and asks for any.

    A version is a number in its one spelling. Triton reads the digits that a text begins with, so
    `1.0`, `01` and `1x` would be answered by version 1, which nobody asked for. The words are Triton's.
    """
    if not version or (_VERSION.fullmatch(version) and int(version) <= _LAST_VERSION):
        return None
    return (
        f"failed to get model version from specified version string {shown(version)},"
        " version should be an integral value > 0"
    )


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
