"""The one form of an error over HTTP."""

from __future__ import annotations

import json


def error_body(message: str) -> bytes:
    """`{"error": message}`, to be sent as application/json."""
    return json.dumps({"error": message}).encode()
