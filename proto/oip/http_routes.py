"""Which RPC a path under /v2 means. Literal: nothing is normalised, no slash is forgiven.

A path is split before it is decoded, and each segment is decoded once: `%2F` stays inside a
model's name, and `..` is a name like any other. A path that the protocol or Triton's extensions
know, but this version does not serve, still has a route, so that its answer can say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from oip.errors import OipError
from oip.reasons import Reason

_GET = ("GET", "HEAD")
_POST = ("POST",)
_BOTH = (*_GET, *_POST)


@dataclass(frozen=True, slots=True)
class Route:
    """`method` is the RPC's name, or what stands for it where HTTP has no RPC. `verbs` are the HTTP
    methods it takes; empty: any, since the answer is the same."""

    method: str
    verbs: tuple[str, ...] = ()
    model: str | None = None
    version: str | None = None


_SERVER: dict[tuple[str, ...], Route] = {
    ("v2",): Route("ServerMetadata", _GET),
    ("v2", "health", "live"): Route("ServerLive", _GET),
    ("v2", "health", "ready"): Route("ServerReady", _GET),
    ("v2", "models", "stats"): Route("ModelStatistics", _GET),
    ("v2", "trace", "setting"): Route("TraceSetting", _BOTH),
    ("v2", "logging"): Route("LogSettings", _BOTH),
    ("v2", "repository", "index"): Route("RepositoryIndex", _POST),
}
_MODEL: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    (): ("ModelMetadata", _GET),
    ("ready",): ("ModelReady", _GET),
    ("config",): ("ModelConfig", _GET),
    ("infer",): ("ModelInfer", _POST),
    ("stats",): ("ModelStatistics", _GET),
    ("generate",): ("generate", _POST),
    ("generate_stream",): ("generate_stream", _POST),
    ("trace", "setting"): ("TraceSetting", _BOTH),
}
_REPOSITORY = {"load": "RepositoryModelLoad", "unload": "RepositoryModelUnload"}
_SHARED_MEMORY = {"systemsharedmemory": "SystemSharedMemory", "cudasharedmemory": "CudaSharedMemory"}
_SHARED_MEMORY_ACTIONS = {"status": "Status", "register": "Register", "unregister": "Unregister"}


def find_route(raw_path: bytes) -> Route:
    """The route of a request's path as it was sent, without its query.

    Raises OipError: NOT_FOUND for a path that means nothing, MALFORMED for a name that is not UTF-8.
    """
    raw = raw_path.split(b"/")[1:] if raw_path.startswith(b"/") else []
    segments = tuple(segment.decode("latin-1") for segment in raw)
    if (route := _SERVER.get(segments)) is not None:
        return route
    match segments:
        case ("v2", "models", name, "versions", version, *action) if name and version:
            if (found := _MODEL.get(tuple(action))) is not None:
                return Route(*found, model=_decode(name), version=_decode(version))
        case ("v2", "models", name, *action) if name:
            if (found := _MODEL.get(tuple(action))) is not None:
                return Route(*found, model=_decode(name))
        case ("v2", "repository", "models", name, action) if name and action in _REPOSITORY:
            return Route(_REPOSITORY[action], _POST, model=_decode(name))
        case ("v2", kind, *region, action) if (
            kind in _SHARED_MEMORY
            and action in _SHARED_MEMORY_ACTIONS
            and (not region or (len(region) == 2 and region[0] == "region"))
        ):
            return Route(_SHARED_MEMORY[kind] + _SHARED_MEMORY_ACTIONS[action])
        case _:
            pass
    raise OipError(Reason.NOT_FOUND, "no such path: see GET /v2 for what this server is")


def _decode(segment: str) -> str:
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode("utf-8")
    except UnicodeDecodeError:
        raise OipError(Reason.MALFORMED, "the name in the path is not UTF-8") from None
