"""Whether a device may run what it is told to, by what is signed of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.update.plan import Slot, Target
from edgewire import allowed, targets
from edgewire.places import Place
from oip.names import shown

FORMAT = "tflite"


@dataclass(frozen=True, slots=True)
class SignedFile:
    """What the metadata says of a target: "sha256:" and 64 hex digits, bytes, and the custom data."""

    digest: str
    size: int
    custom: Mapping[str, Any]


class Refused(Exception):
    """It may not run here; the text is one sentence."""


def names_of(target: Target, active: Slot | None) -> tuple[str, ...]:
    """The signed targets that `order_of` looks at."""
    names = (target.name, target.golden_name, active.target.name if active else "")
    return tuple(dict.fromkeys(name for name in names if name))


def order_of(
    target: Target,
    signed: Mapping[str, SignedFile | None],
    *,
    here: Place,
    active: Slot | None = None,
    previous: Slot | None = None,
    trial: bool = False,
) -> int:
    """The order of a target that the device at `here` may run: it is signed as it is desired, and no step
    back from what is active. For a `trial`, which never serves, the latter does not count. Raises
    Refused."""
    if not target.name:
        raise Refused(f"Model {shown(target.model)} comes without the name of a signed target.")
    file = _same(target.name, target.digest, target.size, signed)
    facts = _facts(target.name, file)
    _named(target, target.name, facts, golden=False)
    if facts.format != FORMAT:
        raise Refused(f"What is signed as {shown(target.name)} is a {shown(facts.format)} file.")
    _golden(target, facts, signed, here)
    _may_be(target.name, facts, here)
    if trial:
        return facts.order
    if facts.trial:
        raise Refused(f"What is signed as {shown(target.name)} is to be tried, and not to serve.")
    for slot in (active, previous):
        if slot and slot.order and slot.target.name == target.name and slot.target.digest != target.digest:
            raise Refused(
                f"What is signed as {shown(target.name)} has other bytes than this device got under the same"
                " name, and a version never changes."
            )
    if active is not None and facts.order < (least := _order_now(active, signed)):
        raise Refused(
            f"What is signed as {shown(target.name)} has order {facts.order}, and what serves here has"
            f" {least}: it is a step back that nobody ordered."
        )
    return facts.order


@dataclass(frozen=True, slots=True)
class _Facts:
    model: str
    version: str
    format: str
    golden: str
    order: int
    trial: bool
    places: str


def _same(name: str, digest: str, size: int, signed: Mapping[str, SignedFile | None]) -> SignedFile:
    file = signed.get(name)
    if file is None:
        raise Refused(f"Nothing is signed under the name {shown(name)}.")
    if file.digest != digest or file.size != size:
        raise Refused(f"What is signed as {shown(name)} is another file than the one that is desired.")
    return file


def _facts(name: str, file: SignedFile) -> _Facts:
    """Raises Refused for what is not of edgewire.targets' form: nothing is taken as if it were absent."""
    said = file.custom
    model, version, golden = said.get("model"), said.get("version"), said.get("golden", "")
    format_, places = said.get("format"), said.get("places", "")
    order, trial = said.get("order"), said.get("trial", False)
    texts = (model, version, golden, format_, places)
    if (
        not all(isinstance(text, str) for text in texts)
        or type(order) is not int
        or order < 1
        or type(trial) is not bool
        or ("places" in said and not places)
        or ("golden" in said and not golden)
    ):
        raise Refused(f"What is signed of {shown(name)} besides its digest cannot be understood.")
    return _Facts(str(model), str(version), str(format_), golden, order, trial, places)


def _named(target: Target, name: str, facts: _Facts, *, golden: bool) -> None:
    """That the name, what is signed with it and what is desired are of one model and version."""
    wanted = (target.model, target.version)
    if (
        targets.model_of(name) != wanted
        or (facts.model, facts.version) != wanted
        or name.endswith(targets.GOLDEN) is not golden
    ):
        raise Refused(
            f"What is signed as {shown(name)} is not"
            f" {'the golden vectors of ' if golden else ''}model {shown(target.model)}"
            f" version {shown(target.version)}."
        )


def _golden(target: Target, facts: _Facts, signed: Mapping[str, SignedFile | None], here: Place) -> None:
    if facts.golden != target.golden_name or bool(target.golden_name) is not bool(target.golden_digest):
        raise Refused(
            f"The golden vectors that are desired with {shown(target.name)} are not those that are signed with it."
        )
    if not facts.golden:
        return
    file = _same(facts.golden, target.golden_digest, target.golden_size, signed)
    theirs = _facts(facts.golden, file)
    _named(target, facts.golden, theirs, golden=True)
    _may_be(facts.golden, theirs, here)


def _may_be(name: str, facts: _Facts, here: Place) -> None:
    if not facts.places:
        return
    try:
        fits = allowed.decode(facts.places).allows(here)
    except ValueError:
        fits = False
    if not fits:
        raise Refused(f"What is signed as {shown(name)} may not be at the place of this device.")


def _order_now(active: Slot, signed: Mapping[str, SignedFile | None]) -> int:
    """What serves may have been ordered anew since it came."""
    file = signed.get(active.target.name)
    if file is None or file.digest != active.target.digest:
        return active.order
    order = file.custom.get("order")
    return max(active.order, order) if type(order) is int else active.order
