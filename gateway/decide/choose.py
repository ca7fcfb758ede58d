"""The decision itself: from a snapshot and a request to a plan, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.config import PolicyConfig
from gateway.core.decision import (
    Candidate,
    Decision,
    EndpointState,
    Note,
    Prediction,
    Snapshot,
    VariantState,
    Verdict,
)
from gateway.core.errors import Refusal
from gateway.core.place import Origin, PrivacyClass
from gateway.core.request import Request
from gateway.decide.admission import admit, quoted, shown
from gateway.decide.compiled import Model, Scoring, Target, compiled
from gateway.policy.match import Traits, choose
from gateway.policy.privacy import origin_of, refusing
from gateway.policy.require import EXCLUSIONS, MARKS, REQUIREMENTS, Facts
from gateway.routing.pick import Rng, order
from gateway.routing.predict import predict
from gateway.routing.score import score
from gateway.routing.scorers._interface import View
from oip.reasons import Reason

_UP = EndpointState(True)
_NOTHING_KNOWN = VariantState()


class _Row(NamedTuple):
    """One variant on its way to a verdict: what excludes it for good, and which of the policy's
    requirements it misses."""

    target: Target
    facts: Facts
    predicted: Prediction
    excluded: tuple[Note, ...]
    missed: tuple[tuple[str, Note], ...]


def decide(snapshot: Snapshot, request: Request, now: float, rng: Rng) -> Decision:
    """Which places may answer, in which order to try them, and the reasons.

    Never raises for a request: a refusal is a decision with an empty plan. `now` is monotonic and
    only ages figures; `rng` draws among equals.
    """
    tables = compiled(snapshot.config)
    options = request.options
    origin = origin_of(tables.gateway, options)
    model = tables.models.get(request.model)
    classes = tables.classes_of(options, model)
    refusal = admit(tables, options, request.model)
    if refusal is not None or model is None:
        refusal = refusal or Refusal(Reason.UNKNOWN_MODEL, "")
        return _decision(snapshot, request, origin, classes, model, refusal=refusal)

    traits = Traits(request.model, "", options.site or origin.site or "", tuple(c.name for c in classes))
    policy = choose(tables.policies, traits, options.policy)
    if isinstance(policy, str):
        reason = Reason.NO_CANDIDATE if options.policy is None else Reason.BAD_OPTION
        return _decision(snapshot, request, origin, classes, model, refusal=Refusal(reason, policy))

    rows = [_row(snapshot, request, now, policy, classes, origin, t) for t in model.targets]
    scoring = tables.scoring[policy.name]
    relaxed, eligible = _eligible(rows, scoring.relax)
    candidates, plan = _candidates(rows, eligible, relaxed, scoring, rng)
    refusal = None if plan else _why_none(request, model, policy, classes, rows, candidates)
    return _decision(snapshot, request, origin, classes, model, policy.name, candidates, plan, refusal)


def _row(
    snapshot: Snapshot,
    request: Request,
    now: float,
    policy: PolicyConfig,
    classes: Sequence[PrivacyClass],
    origin: Origin,
    target: Target,
) -> _Row:
    variant = target.variant
    state = snapshot.variants.get(target.key, _NOTHING_KNOWN)
    endpoint = snapshot.endpoints.get(variant.endpoint, _UP)
    predicted, stale, probing = predict(state, target.price, request.payload_bytes, now)
    facts = Facts(
        refused_by=refusing(classes, target.place, origin),
        version=variant.version or "",
        wanted_version=request.version,
        up=endpoint.up,
        down_detail=endpoint.detail,
        ready=state.ready,
        p50_ms=predicted.latency_p50_ms,
        p95_ms=predicted.latency_p95_ms,
        stale=stale,
        probing=probing,
        cost=predicted.cost,
        quality=variant.quality,
        time_left_s=request.time_left_s,
        max_cost=request.options.max_cost,
        require=policy.require,
    )
    return _Row(
        target,
        facts,
        predicted,
        tuple([note for rule in EXCLUSIONS if (note := rule(facts)) is not None]),
        tuple([(kind, note) for kind, rule in REQUIREMENTS if (note := rule(facts)) is not None]),
    )


def _eligible(rows: Sequence[_Row], relax: Sequence[str]) -> tuple[frozenset[str], list[int]]:
    """Indices of the rows that stay, with the fewest requirements dropped that leave one; none are
    dropped where that helps nobody."""
    for dropped in range(len(relax) + 1):
        relaxed = frozenset(relax[:dropped])
        left = [
            i
            for i, row in enumerate(rows)
            if not row.excluded and all(kind in relaxed for kind, _ in row.missed)
        ]
        if left:
            return relaxed, left
    return frozenset(), []


def _candidates(
    rows: Sequence[_Row], eligible: Sequence[int], relaxed: frozenset[str], scoring: Scoring, rng: Rng
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """All candidates in the order of the variants, and of the eligible ones the plan."""
    scores = score(
        scoring.shares,
        [View(f.p50_ms, f.cost, f.quality, f.probing) for f in [rows[i].facts for i in eligible]],
    )
    totals = [by_kind["total"] for by_kind in scores]
    ranking = order(totals, [rows[i].target.variant.weight for i in eligible], rng)
    made: dict[int, Candidate] = {}
    for rank, at in enumerate(ranking.indices):
        i, total = eligible[at], totals[at]
        row = rows[i]
        if rank > 0:
            why = f"total {total:.3f}, the chosen one's is {totals[ranking.indices[0]]:.3f}"
        elif ranking.equals > 1:
            why = f"total {total:.3f}, drawn by weight among {ranking.equals} equals"
        else:
            why = f"total {total:.3f} is the best"
        made[i] = Candidate(
            row.target.variant,
            row.target.place,
            Verdict.ELIGIBLE if rank else Verdict.CHOSEN,
            (
                *[Note("relaxed", note.detail) for _, note in row.missed],
                *[note for mark in MARKS if (note := mark(row.facts)) is not None],
                Note("score", why),
            ),
            row.predicted,
            scores[at],
        )
    plan = tuple(made.values())
    for i, row in enumerate(rows):
        if i not in made:
            notes = (*row.excluded, *[note for kind, note in row.missed if kind not in relaxed])
            made[i] = Candidate(row.target.variant, row.target.place, Verdict.EXCLUDED, notes, row.predicted)
    return tuple(made[i] for i in range(len(rows))), plan


def _why_none(
    request: Request,
    model: Model,
    policy: PolicyConfig,
    classes: Sequence[PrivacyClass],
    rows: Sequence[_Row],
    candidates: Sequence[Candidate],
) -> Refusal:
    name = model.config.name
    if request.version and all(r.facts.version not in ("", request.version) for r in rows):
        return Refusal(
            Reason.UNKNOWN_VERSION,
            f"Request for unknown model: '{name}' version {shown(request.version)} is not found",
        )
    allowed = [c for row, c in zip(rows, candidates, strict=True) if not row.facts.refused_by]
    if not allowed:
        by = quoted([c.name for c in classes])
        return Refusal(Reason.PRIVACY, f"No endpoint of model '{name}' is in a place that {by} allow")
    firsts = "; ".join(
        f"{c.variant.endpoint} ({c.reasons[0].rule}): {c.reasons[0].detail}" for c in candidates
    )
    if all(c.reasons[0].rule == "deadline" for c in allowed):
        return Refusal(Reason.DEADLINE, f"No place can answer model '{name}' in time: {firsts}")
    return Refusal(
        Reason.NO_CANDIDATE, f"No place can answer model '{name}' under policy '{policy.name}': {firsts}"
    )


def _decision(
    snapshot: Snapshot,
    request: Request,
    origin: Origin,
    classes: Sequence[PrivacyClass],
    model: Model | None,
    policy: str = "",
    candidates: tuple[Candidate, ...] = (),
    plan: tuple[Candidate, ...] = (),
    refusal: Refusal | None = None,
) -> Decision:
    return Decision(
        id=request.decision_id,
        wall_time=request.wall_time,
        model=shown(request.model),
        version=shown(request.version),
        privacy=tuple(c.name for c in classes),
        policy=policy,
        revision=snapshot.revision,
        candidates=candidates,
        plan=plan,
        model_config=None if model is None else model.config,
        refused=None if refusal is None else refusal.reason,
        message="" if refusal is None else refusal.message,
        origin=origin,
    )
