"""What control does of its own accord, with the state it keeps.

signing    the signed metadata about released artifacts
releases   the one that makes and changes releases
rollouts   carries out rollouts: the pure machine of gateway.rollout, its table, and what it orders
updates    carries out updates: from drift to a confirmed rollout
followers  endpoints besides devices that serve what is released
"""
