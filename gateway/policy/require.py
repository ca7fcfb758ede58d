"""What excludes a place, as a list of rules, each a pure function from the facts to a Note or None.

`EXCLUSIONS` hold for every request and are never relaxed. `REQUIREMENTS` are the policy's own,
under the names `on_no_candidate: {relax: [...]}` uses. `MARKS` exclude nothing and only say how
much is known. A figure that is not measured never excludes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.core.config import Require
from gateway.core.decision import Note


class Facts(NamedTuple):
    """What the rules may look at for one variant.

    `refused_by` names the privacy classes that forbid its place. `version` is the variant's own
    ("" when the endpoint chooses), `wanted_version` the caller's ("" for any). `ready` None: not
    asked yet. `stale`: the latency figure is old; `probing`: it is old or missing, and the variant
    may still be tried to get a new one. `cost` and `max_cost` are per answer, in the configured
    currency. None in a figure: not measured; in a limit: no limit.
    """

    refused_by: tuple[str, ...]
    version: str
    wanted_version: str
    up: bool
    down_detail: str
    ready: bool | None
    p50_ms: float | None
    p95_ms: float | None
    stale: bool
    probing: bool
    cost: float | None
    quality: float | None
    time_left_s: float | None
    max_cost: float | None
    require: Require


Rule = Callable[[Facts], Note | None]


def privacy(f: Facts) -> Note | None:
    if f.refused_by:
        return Note("privacy", f"{_classes(f.refused_by)} not allow this place")
    return None


def version(f: Facts) -> Note | None:
    """A variant without a version of its own passes the caller's on, so it excludes none."""
    if f.wanted_version and f.version and f.version != f.wanted_version:
        return Note("version", f"serves version {f.version}, not {f.wanted_version}")
    return None


def health(f: Facts) -> Note | None:
    if not f.up:
        return Note("health", f"the endpoint is down: {f.down_detail}" if f.down_detail else _DOWN)
    if f.ready is False:
        return _NOT_READY
    return None


def deadline(f: Facts) -> Note | None:
    """Even a stale figure counts: a caller's deadline is not for probing."""
    if f.time_left_s is None:
        return None
    if f.time_left_s <= 0:
        return _NO_TIME
    if f.p50_ms is not None and f.p50_ms > f.time_left_s * 1000:
        return Note("deadline", f"p50 {f.p50_ms:.1f} ms is over the {f.time_left_s * 1000:.1f} ms left")
    return None


def max_cost(f: Facts) -> Note | None:
    if f.max_cost is not None and f.cost is not None and f.cost > f.max_cost:
        return Note("max_cost", f"cost {f.cost:.3g} is over the caller's {f.max_cost:.3g}")
    return None


def require_latency(f: Facts) -> Note | None:
    """A stale figure counts as unmeasured while the variant is probed."""
    limit = f.require.latency_p95_ms
    if limit is not None and f.p95_ms is not None and not f.probing and f.p95_ms > limit:
        return Note("require.latency_p95_ms", f"p95 {f.p95_ms:.1f} ms is over {limit:g} ms")
    return None


def require_cost(f: Facts) -> Note | None:
    limit = f.require.max_cost_per_1k
    if limit is not None and f.cost is not None and f.cost * 1000 > limit:
        return Note("require.max_cost_per_1k", f"{f.cost * 1000:.3g} per 1000 answers is over {limit:g}")
    return None


def require_quality(f: Facts) -> Note | None:
    limit = f.require.min_quality
    if limit is not None and f.quality is not None and f.quality < limit:
        return Note("require.min_quality", f"quality {f.quality:g} is under {limit:g}")
    return None


def mark_latency(f: Facts) -> Note | None:
    if f.p50_ms is None:
        return _LATENCY_UNMEASURED
    return _STALE if f.stale else None


def mark_cost(f: Facts) -> Note | None:
    return _COST_UNMEASURED if f.cost is None else None


def mark_quality(f: Facts) -> Note | None:
    return _QUALITY_UNSET if f.quality is None and f.require.min_quality is not None else None


EXCLUSIONS: tuple[Rule, ...] = (privacy, version, health, deadline, max_cost)
REQUIREMENTS: tuple[tuple[str, Rule], ...] = (
    ("latency", require_latency),
    ("cost", require_cost),
    ("quality", require_quality),
)
MARKS: tuple[Rule, ...] = (mark_latency, mark_cost, mark_quality)


def _classes(names: tuple[str, ...]) -> str:
    quoted = " and ".join(f"'{name}'" for name in names)
    return f"class {quoted} does" if len(names) == 1 else f"classes {quoted} do"


_DOWN = "the endpoint is down"
_NOT_READY = Note("health", "the endpoint says that the model is not ready")
_NO_TIME = Note("deadline", "no time is left")
_LATENCY_UNMEASURED = Note("unmeasured", "no latency has been measured yet")
_COST_UNMEASURED = Note("unmeasured", "its capacity has not been measured, so its cost is not known")
_QUALITY_UNSET = Note("unmeasured", "no quality is declared")
_STALE = Note("stale", "its latency figure is old")
