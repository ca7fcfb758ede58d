"""How a release reaches a fleet: in waves, watched, and back where it does harm.

machine   step(state, event, now) -> (state, commands)
├── turning  how it goes back, and how it ends
├── fleet    what a look at the devices changes
├── waves    how many devices a wave has, and which
└── halting  what ends a rollout
state     what the machine remembers, and how it is written down
view      the same for people
loop      the same for an update, of which a rollout is a part: from drift to a recovered fleet
gate      whether a new model may be rolled out

    ordering -> moving -> soaking -> moving ... -> following -> soaking -> standing -> done
        └─────────┴──────────┴───────────┴─────────────┴── returning -> rolled back

Invariants, whatever the order of events:
- a device is told one version at a time: the new one from when it is taken until the way back is signed;
- nobody is taken while it is paused, and nobody any more once it has turned back;
- a wave ends by what was seen (a device that says it serves the new file, answers of the new version),
  never by time alone;
- the old version stands until everything else is done;
- written down and read again between any two events, it goes on in the same way.
"""
