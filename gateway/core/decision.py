"""What is known about the places, and what was decided: all frozen, all without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from edgewire.allowed import AllowedSet
from gateway.core.config import Config, ModelConfig, VariantConfig
from gateway.core.fleet import Group
from gateway.core.place import Origin, Place
from oip.reasons import Reason
from oip.signature import Signature


class VariantKey(NamedTuple):
    """Identifies a variant for everything that is measured: the endpoint, and the model and version
    as that endpoint names them (version "" when the endpoint chooses)."""

    endpoint: str
    model: str
    version: str


class Source(StrEnum):
    """Where a latency figure comes from."""

    LIVE = "live"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class LatencyFigure:
    """Measured latency of a variant, from attempt start to its answer, as seen by this gateway.

    `at` is the monotonic instant of the newest sample in it.
    """

    p50_ms: float
    p95_ms: float
    samples: int
    at: float
    source: Source


@dataclass(frozen=True, slots=True)
class Hurry:
    """Attempts at a variant that had less time than its answers take.

    `begun`: when the last began, by the octave of the time it had. `answered_ms`: the quickest that
    was answered all the same, at `answered_at`. Instants are monotonic.
    """

    begun: Mapping[int, float] = field(default_factory=dict[int, float])
    answered_ms: float = math.inf
    answered_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class EndpointState:
    """Whether an endpoint answers. `detail` says why not, in a few words of ours; `replicas` counts its
    replicas by state, for people."""

    up: bool
    detail: str = ""
    replicas: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class VariantState:
    """What this replica knows about one variant now.

    `ready`: the endpoint says it can serve the model (None: not asked yet). `capacity_rps` is the
    throughput at saturation from a stored measurement, `response_bytes` the mean answer's size;
    None while unmeasured. `latency` is what it is ranked by, cut-off attempts included; `answers` is
    of real answers alone, None while there are too few to refuse anybody by. `trials` counts
    attempts begun since the figure became missing or stale; one cut off early counts in part.
    `signature` is what the endpoint says its model takes and gives; None: not heard yet. `versions` are
    those that it answers with, () where only the endpoint knows; those of a group are its devices'.
    """

    ready: bool | None = None
    latency: LatencyFigure | None = None
    capacity_rps: float | None = None
    response_bytes: float | None = None
    trials: float = 0
    answers: LatencyFigure | None = None
    hurry: Hurry = Hurry()
    signature: Signature | None = None
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything `decide` may look at: one configuration revision and the state of its places.

    `groups` are the device groups' by endpoint; `device_load` counts the attempts that this replica
    has under way, by device.
    """

    config: Config
    revision: str
    endpoints: Mapping[str, EndpointState]
    variants: Mapping[VariantKey, VariantState]
    groups: Mapping[str, Group] = field(default_factory=dict[str, Group])
    device_load: Mapping[str, int] = field(default_factory=dict[str, int])


class Verdict(StrEnum):
    CHOSEN = "chosen"
    ELIGIBLE = "eligible"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True)
class Note:
    """Why a candidate got its verdict. `rule` is a bounded name: "privacy", "hops", "sequence", "version", "health",
    "signature", "deadline", "max_cost", "require.latency_p95_ms", "require.max_cost_per_1k",
    "require.min_quality", "relaxed", "hurried", "unmeasured", "stale", "score". Every note of an excluded
    candidate names a rule that excludes it. `detail` is one sentence of ours."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an attempt would take. None: not measured. `cost` is in the configured currency."""

    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One variant with its verdict. `scores` maps scorer to [0,1], plus "total".

    A device group's place is a device of unknown name until `device` says which one is meant.
    """

    variant: VariantConfig
    place: Place
    verdict: Verdict
    reasons: tuple[Note, ...] = ()
    predicted: Prediction = Prediction()
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    device: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of `decide`.

    `plan` holds the chosen candidate and then the fallbacks, best first; empty when refused, and
    `refused`/`message` then say why. `privacy` are the names of the classes that apply (their
    intersection rules) and `origin` is what their `same` compares with; `allowed` is what a peer
    gateway left of the places, None without one. `policy` is "" when the refusal came before a policy
    was found.
    """

    id: str
    wall_time: float
    model: str
    version: str
    privacy: tuple[str, ...]
    policy: str
    revision: str
    candidates: tuple[Candidate, ...]
    plan: tuple[Candidate, ...]
    model_config: ModelConfig | None = None
    refused: Reason | None = None
    message: str = ""
    origin: Origin = field(default_factory=Origin)
    allowed: AllowedSet | None = None

    @property
    def classes(self) -> str:
        """The classes that apply as one text, joined with "&"; "" where none is known."""
        return "&".join(self.privacy)


class Outcome(StrEnum):
    """How an attempt ended, as a bounded name for records and metrics."""

    OK = "ok"
    REJECTED = "rejected"
    """The endpoint answered that the request is wrong."""
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one place, as it goes into the record. `cost` None: not known, for want of a
    measured capacity. `device` is the one of a group that was tried, "" elsewhere."""

    endpoint: str
    outcome: Outcome
    latency_ms: float
    cost: float | None
    device: str = ""
