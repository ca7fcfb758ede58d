"""The device's own Open Inference Protocol server, HTTP and gRPC, on loopback only.

    options      the request options that mean something on the device
    handlers     one handler for each RPC, from a `Call` to a `Reply`, the same for both bindings
    http_app     the ASGI application under /v2, and bodies that are read only when they are wanted
    http_server  uvicorn on the agent's loop, with the parser's own errors in JSON
    grpc_server  grpc.aio with raw bytes

Privacy: whoever asks here is on the device, and so is the data. The answer is computed on the device and
goes back to the caller on the device; nothing of the request leaves it, on any path, whatever hub the
agent is linked to. A privacy class says where data may go. This data goes nowhere, so there is no class
that the request could break, and `tidegate-privacy` is checked for its form and otherwise kept to by
construction. That is why class `secret` (`same: [device]`) is served here when no gateway may serve it.
"""
