"""Released artifacts: which files are version N of a model, and where they may go.

A release is immutable: the same version never has other bytes. What serves is told apart by version, what
is stored by digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from edgewire.allowed import decode
from edgewire.places import Place
from edgewire.signals import default_edges

Key = tuple[str, str]
"""A release: its model and version."""
FORMATS = ("tflite", "onnx")
ANYWHERE = ""
"""`places` of what was made from the operator's own data alone."""


class Stage(StrEnum):
    CANDIDATE = "candidate"
    """Made or pushed, and not passed by its gate."""
    PASSED = "passed"
    """May be rolled out."""
    REFUSED = "refused"
    """By its gate; only by force is it rolled out."""
    WITHDRAWN = "withdrawn"
    """Rolled back; it is offered to nobody any more."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Stored content: "sha256:" and 64 hex digits, and its length in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A model file with its golden vectors; None: it has none. `format` is one of FORMATS."""

    format: str
    blob: Blob
    golden: Blob | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """How a signal was on the data that a model was made for: counts by bin, one bin more than edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """`files` by slot: a format, or the name of the endpoint that a file is for, which comes first.

    `places`: edgewire.allowed as text, where the files may go, because they were made from data that may
    go nowhere else; ANYWHERE for the operator's own. `order` grows with every release of the model and
    every ordered return to one. `metrics` are the gate's figures. `source` says where it comes from: "file",
    "push" or the id of an update.
    """

    model: str
    version: str
    files: Mapping[str, ReleaseFile]
    order: int
    stage: Stage
    places: str = ANYWHERE
    reference: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    source: str = "file"

    def file_for(self, endpoint: str, format: str) -> ReleaseFile | None:
        """What an endpoint is to run; None where the release has nothing for it."""
        found = self.slot_for(endpoint, format)
        return None if found is None else self.files[found]

    def slot_for(self, endpoint: str, format: str) -> str | None:
        """Its own slot, else the format's, where that has a file of the format: an endpoint may be called as
        another format is."""
        slots = (slot for slot in (endpoint, format) if slot in self.files)
        return next((slot for slot in slots if self.files[slot].format == format), None)

    def edges(self, signal: str) -> tuple[float, ...]:
        """Of the bins that a signal of this release is counted in."""
        reference = self.reference.get(signal)
        return default_edges(signal) if reference is None else reference.edges

    def may_go(self, place: Place) -> bool:
        """Whether the files may be at a place. What cannot be read allows nothing."""
        if self.places == ANYWHERE:
            return True
        try:
            return decode(self.places).allows(place)
        except ValueError:
            return False


def narrowed_places(places: str, others: Iterable[str]) -> str:
    """Where something may go that is made of a release with `places` and of data with those others: where
    all of them allow. Raises ValueError for what is no set of places, and where the result is too long to
    be told."""
    found = None if places == ANYWHERE else decode(places)
    for text in dict.fromkeys(others):
        other = decode(text)
        found = other if found is None else found.narrowed(other)
        found.encode()  # a set too long to be told is not multiplied any further
    return ANYWHERE if found is None else found.encode()


def signed_slot(model: str, called: str, slot: str) -> str:
    """The slot in the name of a signed target, for a release of `model` that devices call `called`: models
    that share a name on devices share no target."""
    return slot if called == model else f"{model}:{slot}"


@dataclass(frozen=True, slots=True)
class GatherOrder:
    """What is to be gathered of a model's requests. `signals` by name, each counted in the
    bins of the release that answers (`Release.edges`). `training`: where samples
    are to be trained on, None for no samples."""

    signals: tuple[str, ...]
    training: Place | None = None
    max_per_day: int = 0
    confidence_below: float = 0.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What devices are to run and gather, as control decided; complete.

    `releases` by model and version. `standing`: the version that a device runs unless `moved` names another
    for it. `trials`: what a device is to try, as (model, version). `gather` by model; a model without an
    entry is counted alone. `report_ms`: how often to write records.
    """

    releases: Mapping[tuple[str, str], Release] = field(default_factory=dict[tuple[str, str], Release])
    standing: Mapping[str, str] = field(default_factory=dict[str, str])
    moved: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By model: device -> version."""
    trials: Mapping[str, tuple[tuple[str, str], ...]] = field(
        default_factory=dict[str, tuple[tuple[str, str], ...]]
    )
    gather: Mapping[str, GatherOrder] = field(default_factory=dict[str, GatherOrder])
    report_ms: int = 60_000

    def version_on(self, model: str, device: str) -> str | None:
        """What a device is to run of a model; None where nothing of it is released."""
        return self.moved.get(model, {}).get(device) or self.standing.get(model)
