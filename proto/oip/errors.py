"""The root of every error that carries a public reason, and the form of an error over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

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


MAX_ERROR_BODY_BYTES = 16 * 1024
"""A message may quote its caller at any length; an answer does not."""


def error_body(message: str) -> bytes:
    """`{"error": message}`, to be sent as application/json; a message too long for
    MAX_ERROR_BODY_BYTES is cut and ends with an ellipsis."""
    body = _error(message)
    if len(body) > MAX_ERROR_BODY_BYTES:
        body = _error(shortened(message, MAX_ERROR_BODY_BYTES - len(_error("")), _json_size))
    return body


class HttpError(NamedTuple):
    """An error as an HTTP answer: status code, headers with lower-case names, body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def http_error(error: OipError) -> HttpError:
    """What an error looks like over HTTP, on every route."""
    headers = [("content-type", "application/json")]
    if error.status.http == 503:
        headers.append(("retry-after", "1"))
    if error.reason is Reason.UNAUTHENTICATED:
        headers.append(("www-authenticate", "Bearer"))
    if error.reason is Reason.UNSUPPORTED_CODING:
        headers.append(("accept-encoding", "gzip, deflate"))
    return HttpError(error.status.http, tuple(headers), error_body(error.message))


def shortened(text: str, most: int, size: Callable[[str], int]) -> str:
    """`text` if the sizes of its characters add up to at most `most`, else as much of its beginning
    as fits with an ellipsis."""
    room = most - size("…")
    total = kept = 0
    for index, character in enumerate(text):
        total += size(character)
        if total <= room:
            kept = index + 1
        if total > most:
            return f"{text[:kept]}…"
    return text


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def _json_size(character: str) -> int:
    return len(json.dumps(character)) - 2
