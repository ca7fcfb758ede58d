"""What a route cannot do: of every other request the three routes give the same answer.

docs/protocol.md has the table; `test_routes_documented.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Limit(NamedTuple):
    """`here`: what the route does instead."""

    routes: tuple[str, ...]
    here: str


LIMITS: Mapping[str, Limit] = {
    "decoupled models and sequences": Limit(
        ("r2", "r3"), "no runtime of theirs has them, so no such model has a variant there"
    ),
    "a request's parameters and id inside the model": Limit(
        ("r2", "r3"), "a runtime sees tensors alone; the id is in the answer all the same"
    ),
    "optional inputs": Limit(("r3",), "TFLite has none: every input is required, in one message for all"),
    "a slow model beside others": Limit(
        ("r2",), "models of one pool share what its replicas take at once: give a slow one a pool of its own"
    ),
    "a run that nobody waits for": Limit(
        ("r3",), "it goes on to its end and its answer is dropped; what waits behind it is dropped unrun"
    ),
}
