"""From the hub's desired state to what serves.

    decide   PURE  (state, event, now) -> (state, commands): what to fetch, try, swap, retire, keep
    disk     the state file and the artifacts, both whole after a loss of power at any instant
    fetch    an artifact by its digest, resumed where it broke off
    device   the shell: carries the commands out, and answers requests with what serves

An update goes: fetch, verify the SHA-256, check and try it in a worker of its own with the golden
vectors, write down that it is active, swap. The old one serves until the swap and ends its own requests
after it. Whatever fails before leaves the old one serving, and the reason in the model's state.

An artifact that failed is not tried again until the desired state of its model changes or the agent
starts again; a fetch that failed is, later and later.
"""

from edge_agent.update.device import DeviceModels

__all__ = ["DeviceModels"]
