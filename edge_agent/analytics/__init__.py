"""What the device tells of its models' requests.

    wall       PURE  what of a request may be counted and kept, and what may be delivered where
    gathering  PURE  requests in, records out: windows of counts, and samples of hard requests
    gatherer   the shell: told of every inference, writes records to the spool at the hub's interval

Plain counts and latency are of every request. Values (signals in bins) are counted, and requests kept as
samples, only where the hub asks for it and the request's own set of places allows the gateway's place,
for a sample the place of training as well. A gateway somewhere else gets the plain counts alone of what was
gathered for the first one.

An order to gather is not kept on disk: a device that has started again and sees no hub counts plainly, as
does one that never enrolled.
"""

from edge_agent.analytics.gatherer import Gatherer

__all__ = ["Gatherer"]
