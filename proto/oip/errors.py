"""The root of every error that carries a public reason."""

from __future__ import annotations

from oip.reasons import STATUS, Reason, Status


class OipError(Exception):
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
