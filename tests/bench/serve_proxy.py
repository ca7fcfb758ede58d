"""The peer: Ray Serve's own gRPC proxy, and a deployment that forwards to the backend.

`python -m tests.bench.serve_proxy HOST:PORT`, in an environment with `FLAGS`. It is what Serve offers
by itself: the request is parsed in the proxy, pickled to the replica and sent on with tritonclient's
stubs. Serve binds this proxy to every interface; it lives only as long as its rows take.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

FLAGS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Part of the former, but it would start no proxy at all.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    # Also meant by it, but read before it: gRPC between proxy and replica, not actor calls.
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * 2**20),
}
"""Ray Serve's documented switch for throughput, and what it needs to carry these requests."""

MODULES = Path(__file__).with_name("serve_modules")
"""To be on PYTHONPATH of every process of the peer."""

SERVICER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class Forward:
    """Sends a request on as it came, over one channel that is opened on the replica's loop."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._stub: Any = None

    async def ModelInfer(self, request: Any) -> Any:
        if self._stub is None:
            import grpc.aio
            from tritonclient.grpc import service_pb2_grpc

            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            channel = grpc.aio.insecure_channel(self._backend, options=options)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return await self._stub.ModelInfer(request)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(backend: str) -> None:
    import psutil
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=4,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
    )
    port = free_port()
    serve.start(
        proxy_location="HeadOnly",
        http_options=HTTPOptions(host="127.0.0.1", port=free_port()),
        grpc_options=gRPCOptions(port=port, grpc_servicer_functions=[SERVICER], enable_reflection=False),
    )
    deployment = serve.deployment(max_ongoing_requests=1000)(Forward)
    serve.run(deployment.bind(backend), name="forward")
    carriers = ("ray::ProxyActor", "ray::ServeReplica")
    pids = [
        child.pid
        for child in psutil.Process(os.getpid()).children(recursive=True)
        if "".join(child.cmdline()[:1]).startswith(carriers)
    ]
    print(json.dumps({"event": "ready", "grpc": f"127.0.0.1:{port}", "pids": pids}), flush=True)
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
