"""Keep the last of Ray's listeners on loopback.

With `environment.prepare` Ray listens on 127.0.0.1. What that does not reach is the server that
every Serve replica opens on all interfaces for calls between deployments: it takes pickles from
whoever connects. This gateway's calls between deployments go over handles on one machine, so that
server is bound to loopback too. tests/integration/test_gateway_process.py fails if a Ray release
slips past this.
"""

from __future__ import annotations

import os
from typing import Any

from ray.serve._private import replica

from gateway.serve.environment import LOOPBACK_SWITCH


def bind_replica_to_loopback() -> None:
    """In a replica, before Serve has opened its server: bind that to loopback, if this Ray is there."""
    if os.environ.get(LOOPBACK_SWITCH) != "0":
        return
    module: Any = replica
    bind = module.add_port_to_grpc_server

    def on_loopback(server: object, address: str) -> int:
        return bind(server, address.replace("[::]", "127.0.0.1"))

    module.add_port_to_grpc_server = on_loopback
