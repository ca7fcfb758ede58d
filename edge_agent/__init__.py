"""The edge agent: runs models on a device and answers for a gateway that it dials.

    link      the stream to the gateway's hub: hello, heartbeats, inferences, reconnects
    runtime   one worker process for each interpreter, and what it says to the agent
    delegates what may run a model's nodes, one file each: external library, XNNPACK, builtin kernels
    update    from the hub's desired state to what serves: fetch, verify, try, swap
    local     the device's own Open Inference Protocol server, HTTP and gRPC

Beside the rooms: `config` (agent.yaml), `state` (the device's folder), `telemetry` (readings),
`agent` (the process) and `cli`. It needs neither Ray nor FastAPI, and imports nothing of the gateway.
"""

__version__ = "0.1.0"
