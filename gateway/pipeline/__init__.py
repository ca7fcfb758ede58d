"""One request from its call to its reply.

    director   options, privacy of the gateway's own place, body, scan, decide, dispatch, reply
    dispatch   attempts along the plan: deadline, retry, privacy asked again before each
    state      what this replica measured and heard of its places; gives `decide` its snapshot
    monitor    asks each endpoint for its health and its models' readiness
    records    the bounded ring of decision records

A replica is stateless but for `state` and `records`: losing it loses measurements, never a request
that was answered.
"""
