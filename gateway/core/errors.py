"""Errors that travel to a caller.

TidegateError            reason + one sentence for the caller
├── Refusal              the gateway will not carry the request (input, options, privacy, limits)
└── AttemptError         one attempt at one endpoint failed
"""

from __future__ import annotations

from oip.reasons import STATUS, Reason, Status


class TidegateError(Exception):
    """A failure with a public reason.

    `message` is one sentence that says where and what to do. It reaches the caller, so it holds no
    payload, path or traceback.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    @property
    def status(self) -> Status:
        return STATUS[self.reason]


class Refusal(TidegateError):
    """The gateway itself refuses the request."""


class AttemptError(TidegateError):
    """One attempt failed.

    `sent` is False only when the request provably never left the gateway. `grpc_status` is the
    status name the endpoint answered with, or the one that describes the failure. `retryable`
    says that another place might answer: true for a place that is gone, false for its verdict on
    the request.
    """

    def __init__(
        self, reason: Reason, message: str, *, grpc_status: str, sent: bool, retryable: bool
    ) -> None:
        super().__init__(reason, message)
        self.grpc_status = grpc_status
        self.sent = sent
        self.retryable = retryable
