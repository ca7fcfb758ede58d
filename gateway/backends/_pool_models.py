"""What one pool serves: its models, what was found in their files, and what is wrong with each. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.backends._pool_counts import PoolCounts
from gateway.core.errors import AttemptError
from gateway.pool.settings import Key, PoolSettings, VariantSettings
from oip.reasons import STATUS, Reason
from oip.signature import Signature

if TYPE_CHECKING:
    from gateway.pool.inspection import Inspected

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
_ELSEWHERE = frozenset(
    {
        Reason.UNAVAILABLE,
        Reason.MODEL_UNAVAILABLE,
        Reason.OVERLOADED,
        Reason.UNKNOWN_MODEL,
        Reason.UNKNOWN_VERSION,
    }
)
"""Reasons of a pool that another place need not share."""


class Pause:
    """Longer and longer pauses between tries."""

    def __init__(self) -> None:
        self._length = FIRST_PAUSE_S
        self.until = 0.0

    def over(self, now: float) -> bool:
        return now >= self.until

    def begin(self, now: float) -> None:
        self.until = now + self._length
        self._length = min(2 * self._length, LONGEST_PAUSE_S)

    def end(self) -> None:
        self._length, self.until = FIRST_PAUSE_S, 0.0


class PoolModels:
    """Of the pool with these settings. Instants are monotonic.

    While a model's replicas are replaced two releases of it answer, whose signatures are the same.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._variants = {variant.key: variant for variant in settings.variants}
        self._found: dict[Key, Inspected] = {}
        self._before: dict[Key, tuple[VariantSettings, Inspected | None]] = {}
        """Releases that still answer somewhere while they are replaced, with what was found in their files."""
        self._broken: dict[Key, str] = {}
        """Why a replica could not run a model, until one can."""
        self._pauses = {key: Pause() for key in self._variants}
        self.counts = {key: PoolCounts() for key in self._variants}

    @property
    def settings(self) -> PoolSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._variants = {variant.key: variant for variant in settings.variants}

    def variant(self, key: Key) -> VariantSettings:
        return self._variants[key]

    def follows(self, model: str) -> bool:
        return (model, "") in self._variants

    def key(self, model: str, version: str) -> Key:
        """The one that is meant; without a version the one that follows releases, or else the highest.
        Raises AttemptError."""
        following = (model, "")
        if version and (model, version) in self._variants:
            return model, version
        if following in self._variants and (not version or version in self.versions(following)):
            return following
        pinned = [key for key in self._variants if key[0] == model and key[1]]
        if version or not pinned:
            known = any(key[0] == model for key in self._variants)
            which = f"'{model}' version '{version}'" if known else f"'{model}'"
            raise verdict(
                Reason.UNKNOWN_MODEL, f"Request for unknown model: {which} is not found", sent=False
            )
        return max(pinned, key=lambda key: int(key[1]))

    def versions(self, key: Key) -> tuple[str, ...]:
        """Those that it answers with now: two while it is replaced."""
        before = [self._before[key][0].version] if key in self._before else []
        return tuple(dict.fromkeys([*before, self._variants[key].version]))

    def accepted(self, key: Key, version: str) -> Mapping[str, str]:
        """The versions that may answer a request that was held against the signature, and the digests of
        their files; the one asked for alone, or any for "". Raises AttemptError."""
        found, now = self._usable(key), self._variants[key]
        both = {now.version: found.digest}
        if key in self._before:
            before, _ = self._before[key]
            both.setdefault(before.version, before.digest)
        if not version:
            return both
        if version not in both:
            text = f"Request for unknown model: '{key[0]}' version '{version}' is not found"
            raise verdict(Reason.UNKNOWN_MODEL, text, sent=False)
        return {version: both[version]}

    def signature(self, key: Key) -> Signature:
        """Raises AttemptError while it is not known."""
        found = self._usable(key)
        assert found.signature is not None
        return found.signature

    def known_signature(self, key: Key) -> Signature | None:
        found = self._found.get(key)
        return None if found is None else found.signature

    def trouble(self, key: Key, now: float) -> str:
        """Why a model is not to be asked now, "" for one that is."""
        found = self._found.get(key)
        if found is None:
            return "not looked at yet"
        if found.failure:
            return found.failure
        return "" if self._pauses[key].over(now) else self._broken.get(key, "")

    def troubles(self, now: float) -> list[str]:
        return [f"{key[0]}: {why}" for key in self._variants if (why := self.trouble(key, now))]

    def ran(self, key: Key) -> None:
        """A replica answered."""
        if self._broken.pop(key, None) is not None:
            self._pauses[key].end()

    def failed(self, key: Key, why: str, now: float) -> None:
        """A replica could not run it."""
        self._broken[key] = why
        self._pauses[key].begin(now)

    def due(self, now: float) -> list[VariantSettings]:
        """Those whose file is to be looked at, for the first time or again."""
        return [
            variant
            for key, variant in self._variants.items()
            if ((found := self._found.get(key)) is None or found.failure) and self._pauses[key].over(now)
        ]

    def seen(self, variant: VariantSettings, found: Inspected, now: float) -> None:
        """What was found in a file."""
        self._found[variant.key] = found
        if found.failure:
            self._pauses[variant.key].begin(now)
        else:
            self._pauses[variant.key].end()
            self.settings = self._settings.with_variant(replace(variant, digest=found.digest))

    def move(self, variant: VariantSettings, found: Inspected) -> None:
        """Begin to serve another release; what was served is accepted until `moved`."""
        self._before[variant.key] = self._variants[variant.key], self._found.get(variant.key)
        self._serve(variant, found)

    def move_back(self, key: Key) -> VariantSettings | None:
        """Begin to serve what was served before; None where that is what is served."""
        variant, found = self._before.get(key, (None, None))
        if variant is None:
            return None
        self._before[key] = self._variants[key], self._found.get(key)
        self._serve(variant, found)
        return variant

    def moved(self) -> None:
        """No replica of before runs any more."""
        self._before.clear()

    def _serve(self, variant: VariantSettings, found: Inspected | None) -> None:
        self.settings = self._settings.with_variant(variant)
        if found is None:
            self._found.pop(variant.key, None)
        else:
            self._found[variant.key] = found
        self._broken.pop(variant.key, None)
        self._pauses[variant.key].end()

    def _usable(self, key: Key) -> Inspected:
        found = self._found.get(key)
        if found is None or found.signature is None:
            why = "has not been looked at yet" if found is None else f"cannot be served: {found.failure}"
            raise verdict(
                Reason.MODEL_UNAVAILABLE,
                f"Model {key[0]} on endpoint {self._settings.name} {why}.",
                sent=False,
            )
        return found


def verdict(reason: Reason, message: str, *, sent: bool) -> AttemptError:
    """A replica's word on a request, or one that needs no replica."""
    return AttemptError(
        reason, message, grpc_status=STATUS[reason].grpc, sent=sent, retryable=reason in _ELSEWHERE
    )
