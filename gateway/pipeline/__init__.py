"""One request from its call to its reply.

    callers    whom a call's credential proves its caller to be
    options    the `tidegate-*` options of a call
    director   options, privacy of the gateway's own place, body, scan, decide, dispatch, reply
    signatures requests held against what their model takes, before anything is sent
    dispatch   attempts along the plan: deadline, retry, privacy asked again before each
    questions  readiness, metadata and configuration, behind the same privacy wall
    state      what this replica measured and heard of its places; gives `decide` its snapshot
    monitor    asks each endpoint for its health, its models' readiness and their signatures
    discovery  what endpoints have, and from it the configuration in force
    observer   what models that are kept fit do at places which do not report themselves, for control
    outgoing   those reports while they wait
    records    the bounded ring of decision records

A replica is stateless but for `state` and `records`: losing it loses measurements, never a request
that was answered.
"""
