"""Unary calls of grpc.aio that can be left without a trace.

Where a task is cancelled that waits for a batch inside gRPC, the batch is never freed: half a kilobyte for each unary
call that its caller leaves (grpc/grpc#43360, in every release up to 1.85). So the call is cancelled at the core alone,
and gRPC's own task, which is shielded, comes to its end by that. What this needs of gRPC is not public: where it is
missing, calls are awaited and cancelled as usual.
"""

from __future__ import annotations

import asyncio
from typing import Any

_LEFT = "left by its caller"


async def answer_of(call: Any) -> Any:
    """A unary call's answer, or what it raises. Cancellation stays with who waits: `leave` ends the call."""
    task: asyncio.Task[Any] | None = getattr(call, "_call_response", None)
    if task is not None:
        await asyncio.shield(task)
    return await call


def leave(call: Any) -> None:
    """Cancel a call that `answer_of` waited for, unless it has ended."""
    core = getattr(call, "_cython_call", None)
    if core is None or not hasattr(call, "_call_response"):
        call.cancel()
    elif not core.done():
        core.cancel(_LEFT)
