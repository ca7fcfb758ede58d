"""From the hub's desired state to what serves.

    plan      PURE  what is desired, what serves, what the device goes back to
    events    PURE  what may happen, and what is then to be done
    decide    PURE  (state, event) -> (state, commands): what to verify, fetch, try, swap, retire, go back to
    verdict   PURE  whether a device may run what it is told to, by what is signed of it
    trust     what is signed, by The Update Framework
    disk      the state file and the artifacts, both whole after a loss of power at any instant
    fetch     an artifact by its digest, resumed where it broke off
    bringing  verified, then fetched
    serving   a model in its worker, and what is said of it
    trials    models that are tried and timed beside what serves
    device    the shell: carries the commands out, and answers requests with what serves

An update goes: verify that it is signed for this device, to serve, and is no step back; fetch; verify the
SHA-256; check and try it in a worker of its own with the golden vectors; write down that it is active;
swap. The old one serves until the swap and ends its own requests after it. Whatever fails before leaves
the old one serving, and the reason in the model's state.

What served before is kept. While a new model is on probation and keeps ending its worker, or when what
served does not load again after a restart, the device goes back by itself, without a hub; what it came from
is not tried again until another digest was desired in between. When what it goes back to fails too, nothing
of the model serves, and the state says why.

An artifact that failed its trial is not tried again until the desired state of its model changes or the
agent starts again; what could not be verified or fetched is, later and later.
"""

from edge_agent.update.device import DeviceModels

__all__ = ["DeviceModels"]
