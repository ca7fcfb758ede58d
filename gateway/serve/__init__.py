"""The composition root: what runs where, and how it starts and stops.

`tidegate up` starts (or joins) Ray and runs these Serve deployments with Serve's own proxies off:

- `Control` holds the configuration, keeps the registry of devices and answers the operator API.
- `DataPlane` owns the listeners. They run on one asyncio loop in a thread of their own, so that
  Serve's bookkeeping on the replica's main loop never delays a request.
- `EdgeHub`, where the configuration has a group of devices, holds their streams, on such a loop too.
  Data planes reach it by a socket in a folder that only this user can enter.
- One application for each pool, which the data plane calls through Serve.

Whichever of them dies Serve starts anew where it was, and the others find it again. Control reads
everything that it must know from the state directory.

Serve does not see requests on these listeners. So the driver asks the data plane to drain before
it parts from the devices and shuts Serve down, and a replica that Serve stops by itself drains in its destructor.
"""
