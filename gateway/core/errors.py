"""Errors that travel to a caller.

oip.errors.OipError      reason + one sentence for the caller; raised by scanner and codecs
└── TidegateError
    ├── Refusal          the gateway will not carry the request (options, privacy, limits)
    └── AttemptError     one attempt at one endpoint failed
"""

from __future__ import annotations

from oip.errors import OipError
from oip.reasons import Reason


class TidegateError(OipError):
    """A failure of the gateway's own making or passing on."""


class Refusal(TidegateError):
    """The gateway itself refuses the request."""


class AttemptError(TidegateError):
    """One attempt failed.

    `sent` is False only when the request provably never left the gateway. `grpc_status` is the
    status name the endpoint answered with, or the one that describes the failure; it is for whoever
    looks after the endpoint, and the caller's status follows from the reason alone. `retryable` says
    that another place might answer: true for a place that is gone, false for its verdict on the request.
    """

    def __init__(
        self, reason: Reason, message: str, *, grpc_status: str, sent: bool, retryable: bool
    ) -> None:
        super().__init__(reason, message)
        self.grpc_status = grpc_status
        self.sent = sent
        self.retryable = retryable
