"""The decision itself: from a snapshot and a request to a plan, and why not the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.core.config import PolicyConfig
from gateway.core.decision import (
    Candidate,
    Decision,
    EndpointState,
    Note,
    Snapshot,
    VariantState,
    Verdict,
)
from gateway.core.errors import Refusal
from gateway.core.place import Origin
from gateway.core.request import Options, Request
from gateway.decide.admission import admit, cut, listed, quoted, unknown_model, version_refusal
from gateway.decide.groups import reach
from gateway.decide.tables import GROUP_PLACE, Compiled, Model, Target, Terms, Wall, compiled
from gateway.policy.match import Traits, choose
from gateway.policy.privacy import origin_of
from gateway.policy.require import EXCLUSIONS, MARKS, NO_TIME, Facts
from gateway.policy.signature import contradiction
from gateway.routing.latency import haste
from gateway.routing.pick import Rng, order
from gateway.routing.predict import predict
from gateway.routing.score import score
from gateway.routing.scorers._interface import View
from oip.reasons import Reason
from oip.signature import Signature

TRY_EVERY_S = 1.0
"""How often a place is tried by callers with less time than every place takes."""

_UP = EndpointState(True)
_NOTHING_KNOWN = VariantState()
_BEST = Note("score", "its total is the best")
_BEHIND = Note("score", "a fallback: its total is behind, or an equal was drawn")


class _Row(NamedTuple):
    """One variant on its way to a verdict: what excludes it for good, and which of the policy's
    requirements it misses."""

    target: Target
    state: VariantState
    facts: Facts
    excluded: list[Note]
    missed: list[tuple[str, Note]]


def decide(snapshot: Snapshot, request: Request, now: float, rng: Rng) -> Decision:
    """Which places may answer, in which order to try them, and the reasons.

    Never raises for a request: a refusal is a decision with an empty plan. `now` is monotonic and
    only ages figures; `rng` draws among equals.
    """
    tables = compiled(snapshot.config)
    options = request.options
    origin = origin_of(tables.gateway, options)
    model = tables.models.get(request.model)
    refusal = admit(tables, options, origin, request.model) or version_refusal(request.version)
    if refusal is not None or model is None:
        return _decision(snapshot, request, origin, _known_classes(tables, options, model), model, refusal)

    names = model.classes(options)
    traits = Traits(request.model, "", options.site or origin.site or "", names)
    policy = choose(tables.policies, traits, options.policy)
    if isinstance(policy, str):
        reason = Reason.NO_CANDIDATE if options.policy is None else Reason.BAD_OPTION
        return _decision(snapshot, request, origin, names, model, Refusal(reason, policy))

    terms = tables.terms[policy.name]
    wall = tables.wall(names, origin, options.allowed)
    agreed = _agreed(snapshot, model)
    rows = [_row(snapshot, request, now, policy, terms, wall, agreed, target) for target in model.targets]
    relaxed, eligible = _eligible(rows, terms.relax, lambda row: not row.excluded)
    if not eligible:
        relaxed, eligible = _hurried(rows, terms.relax, request, now)
    candidates, plan = _candidates(rows, eligible, relaxed, terms, rng)
    refusal = None if plan else _why_none(request, model, policy, names, rows, candidates)
    return _decision(snapshot, request, origin, names, model, refusal, policy.name, candidates, plan)


def _known_classes(tables: Compiled, options: Options, model: Model | None) -> tuple[str, ...]:
    """For the record of a refusal: the classes that apply as far as they exist."""
    named = () if model is None else (model.privacy,)
    if options.privacy is None or options.privacy not in tables.classes or options.privacy in named:
        return named
    return (*named, options.privacy)


def _row(
    snapshot: Snapshot,
    request: Request,
    now: float,
    policy: PolicyConfig,
    terms: Terms,
    wall: Wall,
    agreed: Signature | None,
    target: Target,
) -> _Row:
    variant = target.variant
    state = snapshot.variants.get(target.key, _NOTHING_KNOWN)
    outlook = predict(state, target.price, request.payload_bytes, now)
    group = target.place is None
    # What a device can answer is the group's to say; the endpoint only knows the hub.
    found = reach(snapshot, target, wall, request.version)
    own = state.signature
    facts = Facts(
        found.refused_by,
        variant,
        snapshot.endpoints.get(variant.endpoint, _UP),
        None if group else state.ready,
        *outlook,
        request,
        policy.require,
        group,
        found.away,
        None if own is None or agreed is None else contradiction(agreed, own),
        () if group else state.versions,
        found.lacks,
    )
    return _Row(
        target,
        state,
        facts,
        [note for rule in EXCLUSIONS if (note := rule(facts)) is not None],
        [(kind, note) for kind, rule in terms.requirements if (note := rule(facts)) is not None],
    )


def _agreed(snapshot: Snapshot, model: Model) -> Signature | None:
    """The model's signature: that of the first variant whose endpoint told one."""
    for target in model.targets:
        state = snapshot.variants.get(target.key)
        if state is not None and state.signature is not None:
            return state.signature
    return None


def _eligible(
    rows: Sequence[_Row], relax: Sequence[str], among: Callable[[_Row], bool]
) -> tuple[frozenset[str], list[int]]:
    """Indices of the rows that stay `among` those asked for, with the fewest requirements dropped
    that leave one; none are dropped where that helps nobody."""
    for dropped in range(len(relax) + 1):
        relaxed = frozenset(relax[:dropped])
        left = [
            i for i, row in enumerate(rows) if among(row) and all(kind in relaxed for kind, _ in row.missed)
        ]
        if left:
            return relaxed, left
    return frozenset(), []


def _hurried(
    rows: Sequence[_Row], relax: Sequence[str], request: Request, now: float
) -> tuple[frozenset[str], list[int]]:
    """Where time alone speaks against every place that is left, the one to try all the same, if it
    is time for that.

    Else a place that answers in time again would never be asked by those it refuses. Callers that
    have about the same time share one try in `TRY_EVERY_S`: others, with less, cannot use it up. It
    goes to the place that was tried longest ago, the quickest first.
    """
    relaxed, late = _eligible(rows, relax, _late)
    if not late or request.time_left_s is None:
        return frozenset(), []
    octave = haste(request.time_left_s * 1000)
    tried = {i: rows[i].state.hurry.begun.get(octave, -math.inf) for i in late}
    if now - max(tried.values()) < TRY_EVERY_S:
        return frozenset(), []
    return relaxed, [min(late, key=lambda i: (tried[i], rows[i].facts.answer_ms or 0.0))]


def _late(row: _Row) -> bool:
    """Whether the deadline alone excludes it, and some time is left."""
    return len(row.excluded) == 1 and row.excluded[0].rule == "deadline" and row.excluded[0] is not NO_TIME


def _candidates(
    rows: Sequence[_Row], eligible: Sequence[int], relaxed: frozenset[str], terms: Terms, rng: Rng
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """All candidates in the order of the variants, and of the eligible ones the plan."""
    scores = score(
        terms.shares,
        [
            View(f.predicted.latency_p50_ms, f.predicted.cost, f.variant.quality, f.probing)
            for f in [rows[i].facts for i in eligible]
        ],
    )
    totals = [by_kind["total"] for by_kind in scores]
    ranking = order(totals, [rows[i].target.variant.weight for i in eligible], rng)
    made: dict[int, Candidate] = {}
    for rank, at in enumerate(ranking.indices):
        i = eligible[at]
        row = rows[i]
        notes = [Note("relaxed", note.detail) for _, note in row.missed]
        notes += [Note("hurried", f"{note.detail}: tried all the same") for note in row.excluded]
        notes += [note for mark in MARKS if (note := mark(row.facts)) is not None]
        notes.append(_score_note(rank, ranking.equals))
        made[i] = Candidate(
            row.target.variant,
            row.target.place or GROUP_PLACE,
            Verdict.ELIGIBLE if rank else Verdict.CHOSEN,
            tuple(notes),
            row.facts.predicted,
            scores[at],
        )
    plan = tuple(made.values())
    for i, row in enumerate(rows):
        if i not in made:
            notes = (*row.excluded, *[note for kind, note in row.missed if kind not in relaxed])
            made[i] = Candidate(
                row.target.variant,
                row.target.place or GROUP_PLACE,
                Verdict.EXCLUDED,
                notes,
                row.facts.predicted,
            )
    return tuple(made[i] for i in range(len(rows))), plan


def _score_note(rank: int, equals: int) -> Note:
    if rank > 0:
        return _BEHIND
    return _BEST if equals < 2 else Note("score", f"drawn by weight among {equals} equals")


def _why_none(
    request: Request,
    model: Model,
    policy: PolicyConfig,
    names: Sequence[str],
    rows: Sequence[_Row],
    candidates: Sequence[Candidate],
) -> Refusal:
    name = model.config.name
    allowed = [c for row, c in zip(rows, candidates, strict=True) if not row.facts.refused_by]
    # What a forbidden place has is nothing that this request could be answered from.
    if all(any(note.rule == "version" for note in c.reasons) for c in allowed or candidates):
        return unknown_model(name, request.version)
    if not allowed:
        verb = "allows" if len(names) == 1 else "allow"
        left = "" if request.options.allowed is None else " and the peer's tidegate-allowed leaves"
        return Refusal(
            Reason.PRIVACY, f"No endpoint of model '{name}' is in a place that {quoted(names)} {verb}{left}"
        )
    firsts = listed(
        [cut(f"{c.variant.endpoint} ({c.reasons[0].rule}): {c.reasons[0].detail}") for c in candidates],
        "; ",
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
    names: tuple[str, ...],
    model: Model | None,
    refusal: Refusal | None,
    policy: str = "",
    candidates: tuple[Candidate, ...] = (),
    plan: tuple[Candidate, ...] = (),
) -> Decision:
    return Decision(
        id=request.decision_id,
        wall_time=request.wall_time,
        model=cut(request.model),
        version=cut(request.version),
        privacy=names,
        policy=policy,
        revision=snapshot.revision,
        candidates=candidates,
        plan=plan,
        model_config=None if model is None else model.config,
        refused=None if refusal is None else refusal.reason,
        message="" if refusal is None else refusal.message,
        origin=origin,
        allowed=request.options.allowed,
    )
