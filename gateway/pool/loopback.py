"""Keep the last of Ray's listeners on loopback.

With LOOPBACK_SWITCH at 0 Ray listens on 127.0.0.1. What that does not reach is the server that
every Serve replica opens on all interfaces for calls between deployments: it takes pickles from
whoever connects. This gateway's calls between deployments go over handles on one machine, so that
server is bound to loopback too.
"""

from __future__ import annotations

import os
from typing import Any

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray takes 127.0.0.1 for its node's address, on Linux as well, and listens there alone."""


def bind_replica_to_loopback() -> None:
    """In a replica, before Serve has opened its server: bind that to loopback, if this Ray is there."""
    if os.environ.get(LOOPBACK_SWITCH) != "0":
        return
    from ray.serve._private import replica

    module: Any = replica
    bind = module.add_port_to_grpc_server

    def on_loopback(server: object, address: str) -> int:
        return bind(server, address.replace("[::]", "127.0.0.1"))

    module.add_port_to_grpc_server = on_loopback
