"""What excludes a place, as a list of rules, each a pure function from the facts to a Note or None.

`EXCLUSIONS` hold for every request and are never relaxed. `requirements` are the policy's own,
under the names that `on_no_candidate: {relax: [...]}` uses. `MARKS` exclude nothing and only say how
much is known. A figure that is not measured never excludes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.core.config import Require, VariantConfig
from gateway.core.decision import EndpointState, Note, Prediction
from gateway.core.request import Request


class Facts(NamedTuple):
    """What the rules may look at for one variant.

    `refused_by` names what forbids its place, or every device of it for a `group`: privacy classes and
    a peer's set. `ready`: the endpoint says it can serve the model; None: not asked yet. `away`: why no
    device of a group can answer, "" otherwise. `differs`: how its signature contradicts the model's, None
    where it does not. `versions`: those that it answers with, () where only the endpoint knows; `lacks`: why
    no device of a group answers with the one asked for. The rest is said of the latency: `stale`, its figure is
    old; `probing`, it is old or missing, and the variant may still be tried to get a new one; `firm`,
    it may exclude; `answer_ms`, how long answers take, None where that may not exclude.
    """

    refused_by: tuple[str, ...]
    variant: VariantConfig
    endpoint: EndpointState
    ready: bool | None
    predicted: Prediction
    stale: bool
    probing: bool
    firm: bool
    answer_ms: float | None
    request: Request
    require: Require
    group: bool = False
    away: str = ""
    differs: str | None = None
    versions: tuple[str, ...] = ()
    lacks: str = ""


Rule = Callable[[Facts], Note | None]

PEERS_SET = "tidegate-allowed"
"""The name under which a peer's set refuses a place, beside the names of classes."""


def privacy(f: Facts) -> Note | None:
    if not f.refused_by:
        return None
    what = "any of its devices" if f.group else "this place"
    classes = tuple(name for name in f.refused_by if name != PEERS_SET)
    if not classes:
        return Note("privacy", f"{PEERS_SET} does not name {what}")
    also = f", and {PEERS_SET} does not name it" if len(classes) < len(f.refused_by) else ""
    return Note("privacy", f"{_classes(classes)} not allow {what}{also}")


def hops(f: Facts) -> Note | None:
    """An endpoint that is a gateway has the name of that gateway."""
    name = f.variant.endpoint
    return Note("hops", f"the request has passed {name} before") if name in f.request.options.hops else None


def sequence(f: Facts) -> Note | None:
    home = f.request.home
    return (
        Note("sequence", f"the sequence's state is on {home}")
        if home and f.variant.endpoint != home
        else None
    )


def version(f: Facts) -> Note | None:
    """Where only the endpoint knows its versions the caller's is passed on, and excludes nothing."""
    wanted, own = f.request.version, f.variant.version
    if not wanted:
        return None
    if f.lacks:
        return Note("version", f.lacks)
    versions = f.versions if own is None else (own,)
    if versions and wanted not in versions:
        return Note("version", f"serves version {' and '.join(versions)}, not the one asked for")
    return None


def health(f: Facts) -> Note | None:
    if not f.endpoint.up:
        detail = f.endpoint.detail
        return Note("health", f"the endpoint is down: {detail}" if detail else "the endpoint is down")
    if f.away:
        return Note("health", f.away)
    return _NOT_READY if f.ready is False else None


def signature(f: Facts) -> Note | None:
    if f.differs is not None:
        return Note("signature", f"not the same model: {f.differs}")
    return None


def deadline(f: Facts) -> Note | None:
    left, takes = f.request.time_left_s, f.answer_ms
    if left is None:
        return None
    if not left > 0:
        return NO_TIME
    if takes is not None and takes > left * 1000:
        return Note("deadline", f"answers take {takes:.1f} ms and {left * 1000:.1f} ms are left")
    return None


def max_cost(f: Facts) -> Note | None:
    limit, cost = f.request.options.max_cost, f.predicted.cost
    if limit is not None and cost is not None and cost > limit:
        return Note("max_cost", f"cost {cost:.3g} is over the caller's {limit:.3g}")
    return None


def require_latency(f: Facts) -> Note | None:
    """A stale figure counts as unmeasured while the variant is probed, and so does one of few samples."""
    limit, p95 = f.require.latency_p95_ms, f.predicted.latency_p95_ms
    if limit is not None and p95 is not None and f.firm and p95 > limit:
        return Note("require.latency_p95_ms", f"p95 {p95:.1f} ms is over {limit:g} ms")
    return None


def require_cost(f: Facts) -> Note | None:
    limit, cost = f.require.max_cost_per_1k, f.predicted.cost
    if limit is not None and cost is not None and cost * 1000 > limit:
        return Note("require.max_cost_per_1k", f"{cost * 1000:.3g} per 1000 answers is over {limit:g}")
    return None


def require_quality(f: Facts) -> Note | None:
    limit, quality = f.require.min_quality, f.variant.quality
    if limit is not None and quality is not None and quality < limit:
        return Note("require.min_quality", f"quality {quality:g} is under {limit:g}")
    return None


def mark_latency(f: Facts) -> Note | None:
    if f.predicted.latency_p50_ms is None:
        return _LATENCY_UNMEASURED
    return _STALE if f.stale else None


def mark_cost(f: Facts) -> Note | None:
    return _COST_UNMEASURED if f.predicted.cost is None else None


def mark_quality(f: Facts) -> Note | None:
    return _QUALITY_UNSET if f.variant.quality is None and f.require.min_quality is not None else None


EXCLUSIONS: tuple[Rule, ...] = (privacy, hops, sequence, version, health, signature, deadline, max_cost)
MARKS: tuple[Rule, ...] = (mark_latency, mark_cost, mark_quality)


def requirements(require: Require) -> tuple[tuple[str, Rule], ...]:
    """(name to relax it by, rule) for what a policy requires."""
    rules = (
        ("latency", require_latency, require.latency_p95_ms),
        ("cost", require_cost, require.max_cost_per_1k),
        ("quality", require_quality, require.min_quality),
    )
    return tuple((name, rule) for name, rule, limit in rules if limit is not None)


def _classes(names: tuple[str, ...]) -> str:
    quoted = " and ".join(f"'{name}'" for name in names)
    return f"class {quoted} does" if len(names) == 1 else f"classes {quoted} do"


_NOT_READY = Note("health", "the endpoint says that the model is not ready")
NO_TIME = Note("deadline", "no time is left")
_LATENCY_UNMEASURED = Note("unmeasured", "no latency has been measured yet")
_COST_UNMEASURED = Note(
    "unmeasured", "its capacity has not been measured (tidegate bench does), so its cost is not known"
)
_QUALITY_UNSET = Note("unmeasured", "no quality is declared")
_STALE = Note("stale", "its latency figure is old")
