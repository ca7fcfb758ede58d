"""The device's own Open Inference Protocol server, HTTP and gRPC, on loopback only.

    options      the request options that mean something on the device
    handlers     one handler for each RPC, from a `Call` to a `Reply`, the same for both bindings
    http_app     the ASGI application under /v2, and bodies that are read only when they are wanted
    http_server  uvicorn on the agent's loop, with the parser's own errors in JSON
    grpc_server  grpc.aio with raw bytes

Privacy: whoever asks here is on the device, and so is the data. The answer is computed on the device and
goes back to the caller on the device, whatever hub the agent is linked to. That is why class `secret`
(`same: [device]`) is served here when no gateway may serve it. What may be gathered of a request is
analytics' to say, by the class of its model. A request that names a class of its own is counted plainly:
the device does not know what that class allows.
"""
