"""The edge hub: holds the devices' streams, and passes inferences on to them.

groups     an `edge` endpoint's configuration, and which devices belong to it
desired    PURE  what one device is to run
session    PURE  one device's stream: messages in, events out
├── outbox      PURE  what is to be sent, small things first and large ones in turns
└── answers     PURE  an answer's pieces put together, within bounds
admission  PURE  how many devices may connect at once after a restart
ports      what the hub asks of the registry and of the artifacts
book       the enrolled devices as the hub knows them
fleet      what watchers are told, gathered for a moment
deliveries what devices have counted, passed on to control
public     the calls of devices: Enrol, Connect, Fetch, Metadata, Deliver
inside     the calls of data plane replicas: Forward, Watch
server     both listeners, start and end

A stream's session knows no socket and no clock, so what happens when messages are late, cut, forged or
out of order is tested without either. `public` moves messages between it and gRPC.

Data passes only to a device whose place, as enrolled, is in the request's allowed set: `inside` asks
before a byte is queued, whatever the data plane has asked before.
"""
