"""What endpoints say they have, added to what a configuration declares.

Names come from servers, so they are text of anybody's: what no caller could ask for, or nobody could
read, is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.core.config.models import Config, ModelConfig, VariantConfig
from oip.names import shown

MAX_NAME = 256
"""Longest name, in characters; as of a model in the file."""
MAX_MODELS = 1000
"""Models of one endpoint that are offered, the first by name."""
SHOWN = 3
"""Names that a remark quotes before it only counts."""


@dataclass(frozen=True, slots=True)
class Found:
    """Names of the models that one endpoint has, each once and in order, as far as they can be offered.
    `odd` counts the names that cannot, `surplus` those beyond MAX_MODELS."""

    names: tuple[str, ...] = ()
    odd: int = 0
    surplus: int = 0


NOTHING = Found()


@dataclass(frozen=True, slots=True)
class Offered:
    """What one endpoint has and is offered beside the declared models, in order. `left_out` counts the
    models that are not, and `remark` says why in a clause, "" where there are none."""

    names: tuple[str, ...] = ()
    left_out: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """The configuration in force, and what was discovered of it by endpoint."""

    config: Config
    endpoints: Mapping[str, Offered] = field(default_factory=dict[str, Offered])


def found_of(names: Iterable[str]) -> Found:
    """What can be offered of the names that an endpoint gives.

    A name has 1 to MAX_NAME characters, all of them printable: no control characters, none that turn
    the direction of text, no halves of a character; and no space at either end.
    """
    given = set(names)
    good = sorted(name for name in given if _is_name(name))
    return Found(tuple(good[:MAX_MODELS]), len(given) - len(good), max(0, len(good) - MAX_MODELS))


def offer(config: Config, found: Mapping[str, Found]) -> Offer:
    """The configuration as declared, with a model for every name that its endpoints have besides.

    `found` is by endpoint; one that is to discover nothing counts for nothing. An entry under `models`
    wins over a name equal to its own, and over what its variants use at their endpoints under another
    name: its class may be the narrower one. A name that endpoints have in different classes is offered
    by none of them. What is offered has the endpoints as its variants, in the order of the file, and is
    not idempotent. The result is as consistent as `config`.
    """
    declared = {model.name for model in config.models}
    used = {(v.endpoint, v.model or m.name) for m in config.models for v in m.variants}
    classes = {e.name: e.discovers for e in config.endpoints if e.discovers is not None}
    having: dict[str, list[str]] = {}
    for endpoint in classes:
        for name in found.get(endpoint, NOTHING).names:
            if name not in declared and (endpoint, name) not in used:
                having.setdefault(name, []).append(endpoint)
    disputed = {name for name, at in having.items() if len({classes[e] for e in at}) > 1}
    models = tuple(
        ModelConfig(
            name=name,
            privacy=classes[having[name][0]],
            variants=tuple(VariantConfig(endpoint=endpoint) for endpoint in having[name]),
        )
        for name in sorted(having.keys() - disputed)
    )
    whole = config.model_copy(update={"models": (*config.models, *models)}) if models else config
    offered: dict[str, list[str]] = {endpoint: [] for endpoint in classes}
    for model in models:
        for variant in model.variants:
            offered[variant.endpoint].append(model.name)
    return Offer(
        whole,
        {
            e: _offered(names, found.get(e, NOTHING), [n for n in sorted(disputed) if e in having[n]])
            for e, names in offered.items()
        },
    )


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()


def _offered(names: list[str], found: Found, disputed: list[str]) -> Offered:
    reasons: list[str] = []
    if found.odd:
        reasons.append(f"{found.odd} with names that are too long or cannot be shown")
    if found.surplus:
        reasons.append(f"{found.surplus} beyond the first {MAX_MODELS}")
    if disputed:
        shortly = ", ".join(map(shown, disputed[:SHOWN]))
        more = f" and {len(disputed) - SHOWN} more" if len(disputed) > SHOWN else ""
        reasons.append(f"{len(disputed)} that another endpoint has in another class: {shortly}{more}")
    remark = f"not all of its models are offered: {'; '.join(reasons)}" if reasons else ""
    return Offered(tuple(names), found.odd + found.surplus + len(disputed), remark)
