"""What schemathesis is to know of the gateway; loaded by it, in its environment.

`TIDEGATE_NAMES` holds a JSON object: names of path parameters -> values to put there in half of the requests,
because a name drawn at random is never one that exists.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis

NAMES: dict[str, list[str]] = json.loads(os.environ.get("TIDEGATE_NAMES", "{}"))
NOT_SERVED = 501


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Draws by what was drawn, so that a failure is the same again."""
    found = dict(path_parameters or {})
    for key, values in NAMES.items():
        if key in found:
            drawn = sum(repr(found[key]).encode())
            if drawn % 2:
                found[key] = values[drawn // 2 % len(values)]
    return found or path_parameters


@schemathesis.check
def told_in_a_sentence(ctx: Any, response: Any, case: Any) -> None:
    """Whatever fails is the caller's fault or is not served, and is told as `{"error": "<one sentence>"}`."""
    if response.status_code < 300:
        return
    assert response.status_code < 500 or response.status_code == NOT_SERVED, f"status {response.status_code}"
    if case.method.upper() == "HEAD":
        return
    (kind,) = response.headers.get("content-type", ["none"])
    assert kind.split(";")[0] == "application/json", f"{response.status_code} as {kind}"
    told = json.loads(response.content)
    assert isinstance(told, dict), f"told {told!r}"
    assert set(told) == {"error"}, f"told {told!r}"
    assert isinstance(told["error"], str), f"told {told!r}"
    assert told["error"].strip(), f"told {told!r}"


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """MLServer's description calls the data of a tensor an array or `bytes`, which is no type of JSON."""
    data = raw_schema.get("components", {}).get("schemas", {}).get("TensorData", {}).get("oneOf", [])
    for kind in data:
        if kind.get("type") == "bytes":
            kind["type"] = "string"
