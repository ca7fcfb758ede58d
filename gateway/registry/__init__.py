"""The registry of devices: who may connect, from where, and by which credential.

devices    one enrolled device, as the hub and decisions see it
rules      PURE  tokens, enrolment, drain, revocation: (state, event, now) -> what becomes of it
registry   the shell: reads the state, asks the rules, stores what they say before it answers

Only control runs a registry: it is the one writer. The hub gets its devices from there and asks it to
enrol one.
"""
