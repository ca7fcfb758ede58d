"""The device's stream to the gateway's hub. The device dials; it sits behind NAT.

    dialing   which hub next, and how long to wait before (pure)
    outbox    what is sent next: control first, then data in turns (pure)
    session   one stream: the hub's messages in, what is to be done out (pure)
    messages  a request's trace context, spans and place (pure)
    client    the calls over grpc.aio: enrol, connect, fetch
    deliver   what was counted and kept, on calls of its own
    runner    keeps a stream up for as long as the agent lives, and does what its session says

Times are durations of the monotonic clock: the device's wall clock may be wrong by decades or jump.
The credential goes with every call and is never given up because a hub refuses it: a hub may have
lost its registry for a while.
"""
