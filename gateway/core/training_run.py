"""A training run as those who order one see it: what it is given, what is heard of it, how it ends.

Samples come with the places that their requests allow. A run is not even made where one of them, or the
release that it starts from, may not be at the training place: TrainSpec raises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from edgewire.allowed import decode
from gateway.core.config.updates import TrainConfig
from gateway.core.errors import Refusal
from gateway.core.place import Place
from gateway.core.release import ANYWHERE, narrowed_places
from gateway.core.training import Sample
from oip.reasons import Reason

HELD_OUT_ONE_IN = 5
"""So much of the labelled samples is held out for the gate."""
LOG_BYTES = 2**20
MAX_SENTENCE = 300
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class PlacedSample:
    """`places`: edgewire.allowed as text, where the sample's request may go."""

    sample: Sample
    places: str


def is_held_out(sample_id: str) -> bool:
    """Whether a labelled sample is for the gate and so never trained on: every fifth, by its id alone, which
    is the digest of its inputs, so that the answer is the same in every run."""
    digest = hashlib.sha256(sample_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def split(samples: Iterable[PlacedSample]) -> tuple[tuple[PlacedSample, ...], tuple[PlacedSample, ...]]:
    """Those to train on, and those held out, each in the order given."""
    every = tuple(samples)
    held = tuple(placed for placed in every if is_held_out(placed.sample.id))
    return tuple(placed for placed in every if not is_held_out(placed.sample.id)), held


def refuse_forbidden(place: Place, places: str, samples: Sequence[PlacedSample]) -> None:
    """Raise Refusal unless files that may go to `places` and every sample may be at a place."""
    if places != ANYWHERE and not _allows(places, place):
        raise Refusal(
            Reason.PRIVACY,
            f"The model was made from data that may not go to {place}: train where it may be.",
        )
    forbidden = sum(not _allows(placed.places, place) for placed in samples)
    if forbidden:
        raise Refusal(
            Reason.PRIVACY,
            f"{forbidden} of {len(samples)} samples may not go to {place}: nothing was sent there.",
        )


def _allows(places: str, place: Place) -> bool:
    """What cannot be read allows nothing."""
    try:
        return decode(places).allows(place)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """One run. `version`: what the new release will be. `files`: contents of the release that serves, by
    slot; `places`: where those may go. Raises Refusal where one thing of it may not be at `place`, and
    ValueError for samples that are held out, twice the same, or of more places than can be told.
    """

    model: str
    version: str
    train: TrainConfig
    place: Place
    files: Mapping[str, bytes] = field(repr=False)
    places: str = ANYWHERE
    samples: tuple[PlacedSample, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        refuse_forbidden(self.place, self.places, self.samples)
        if any(is_held_out(placed.sample.id) for placed in self.samples):
            raise ValueError("a sample that is held out for the gate may not be trained on")
        narrowed_places(self.places, (placed.places for placed in self.samples))

    @property
    def new_places(self) -> str:
        """Where the new release may go: where everything that it is made from may."""
        return narrowed_places(self.places, (placed.places for placed in self.samples))


class RunKind(StrEnum):
    WAITING = "waiting"
    """For resources; the words say which."""
    BEGAN = "began"
    PROGRESS = "progress"
    LOG = "log"
    """Lines that the trainer printed."""
    RETRYING = "retrying"
    """An attempt failed, as the words say, and there is another."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """What is heard of a run, in order. `share` is 0 to 1 of this attempt, with PROGRESS alone."""

    kind: RunKind
    words: str = ""
    share: float = 0.0
    attempt: int = 1


class Fault(StrEnum):
    """Why a run gave no model."""

    ENTRYPOINT = "entrypoint"
    """There is no such function, or it cannot be imported."""
    CONTRACT = "contract"
    """It gave back what is no TrainResult that could be released."""
    RESOURCES = "resources"
    """Ray knows no such amount of such a resource."""
    RAISED = "raised"
    MEMORY = "memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The machine that it ran on, or Ray itself."""


LASTING = frozenset({Fault.ENTRYPOINT, Fault.CONTRACT, Fault.RESOURCES})
"""What another attempt would end with as well."""


class TrainFailed(Exception):
    """The run came to nothing. `sentence` says why, for the operator; it is bounded."""

    def __init__(self, fault: Fault, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = fault
        self.sentence = sentence

    def __reduce__(self) -> tuple[type[TrainFailed], tuple[Fault, str]]:
        return TrainFailed, (self.fault, self.sentence)


def may_retry(fault: Fault, attempt: int, retries: int) -> bool:
    """Whether there is another attempt after the `attempt`-th, counted from 1, failed."""
    return fault not in LASTING and attempt <= retries


def one_sentence(words: str) -> str:
    """On one line, without control characters, and no longer than MAX_SENTENCE."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if len(line) <= MAX_SENTENCE else line[: MAX_SENTENCE - 1] + "…"


class RunLog:
    """The last `most` bytes of what a run printed, as text without control characters."""

    def __init__(self, most: int = LOG_BYTES) -> None:
        self._most = most
        self._kept = bytearray()
        self._cut = False

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._kept)

    def add(self, text: str) -> None:
        self._kept += _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r", "\n")).encode()
        over = len(self._kept) - self._most
        if over > 0:
            del self._kept[:over]
            self._cut = True

    def text(self) -> str:
        """What is kept; a first line says so where there was more."""
        kept = self._kept.decode(errors="ignore")
        return ("(earlier lines are not kept)\n" if self._cut else "") + kept
