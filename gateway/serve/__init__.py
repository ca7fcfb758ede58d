"""The composition root: what runs where, and how it starts and stops.

`tidegate up` starts (or joins) Ray and runs two Serve deployments with Serve's own proxies off:

- `Control` holds the configuration and answers the operator API.
- `DataPlane` owns the listeners. They run on one asyncio loop in a thread of their own, so that
  Serve's bookkeeping on the replica's main loop never delays a request.

Serve does not see requests on these listeners. So the driver asks the data plane to drain before
it shuts Serve down, and a replica that Serve stops by itself drains in its destructor.
"""
