"""What must hold between the parts of a configuration.

The checks read the plain tree and step over whatever is not of the expected shape, so that they
run, and report, beside other mistakes in the same file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import cast

from gateway.core.config import update_checks
from gateway.core.config.plain import Plain, mapping, mappings, texts
from gateway.core.config.problems import Finding, Loc
from gateway.core.config.references import show

_TIERS = ("device", "site", "regional", "cloud")
_WITH_SITE = frozenset({"device", "site"})
_MATCH_KEYS = ("models", "tenants", "sites", "privacy")


def references(data: object) -> Iterator[Finding]:
    """Names that repeat, references that lead nowhere, and a file that offers nothing."""
    root = mapping(data)
    yield from _no_models(root)
    for section, noun in (("endpoints", "endpoint"), ("models", "model"), ("policies", "policy")):
        yield from _repeated(root, section, noun)
    yield from _replicas(root)
    yield from _gateways(root)
    endpoints = _names(root, "endpoints")
    classes = _classes(root)
    if classes is not None:
        yield from _unknown(mapping(root.get("privacy")), "default", ("privacy",), "privacy class", classes)
        for index, endpoint in mappings(root.get("endpoints")):
            loc: Loc = ("endpoints", index, "discover")
            yield from _unknown(mapping(endpoint.get("discover")), "privacy", loc, "privacy class", classes)
    for index, model in mappings(root.get("models")):
        loc = ("models", index)
        if classes is not None:
            yield from _unknown(model, "privacy", loc, "privacy class", classes)
        for number, variant in mappings(model.get("variants")):
            if endpoints is not None:
                yield from _unknown(
                    variant, "endpoint", (*loc, "variants", number), "endpoint", sorted(endpoints)
                )
    yield from _updates(root)


def _no_models(root: Plain) -> Iterator[Finding]:
    """Models may be left out only where an endpoint has some to discover."""
    if any(endpoint.get("discover") is not None for _, endpoint in mappings(root.get("endpoints"))):
        return
    or_discover = "or give an endpoint discover: {privacy: CLASS}"
    if "models" not in root:
        if not any(did_you_mean(key, ["models"]) for key in root):
            yield Finding((), f"key 'models' is missing from the file: add it, {or_discover}")
    elif root["models"] in ([], ()):
        yield Finding(("models",), f"models must not be empty: write at least one entry, {or_discover}")


def _replicas(root: Plain) -> Iterator[Finding]:
    """Following the load is not served yet."""
    replicas = mapping(mapping(root.get("gateway")).get("replicas"))
    least, most = replicas.get("min", 1), replicas.get("max", 1)
    if type(least) is not int or type(most) is not int or least == most:
        return
    key = "max" if "max" in replicas else "min"
    text = (
        "gateway.replicas.max other than gateway.replicas.min is not served by this version: write one number"
    )
    yield Finding(("gateway", "replicas", key), text)


def _updates(root: Plain) -> Iterator[Finding]:
    """Each entry names a model of the file, once, and as its teacher a variant of it."""
    models = {m["name"]: m for _, m in mappings(root.get("models")) if isinstance(m.get("name"), str)}
    seen: set[str] = set()
    for index, update in mappings(root.get("updates")):
        name, loc = update.get("model"), ("updates", index)
        if not isinstance(name, str):
            continue
        yield from _unknown(update, "model", loc, "model", sorted(str(known) for known in models))
        if name in seen:
            yield Finding((*loc, "model"), f"model {show(name)} has two entries: keep one")
        seen.add(name)
        labels = mapping(mapping(update.get("samples")).get("labels"))
        variants = mappings(mapping(models.get(name)).get("variants"))
        teachers = sorted({str(v["endpoint"]) for _, v in variants if isinstance(v.get("endpoint"), str)})
        if name in models and isinstance(labels.get("teacher"), str):
            where = (*loc, "samples", "labels")
            yield from _unknown(labels, "teacher", where, "endpoint of a variant of this model", teachers)


def sense(data: object) -> Iterator[Finding]:
    """Parts that are well-formed and still cannot be meant."""
    root = mapping(data)
    yield from _location(mapping(root.get("gateway")), ("gateway",))
    for index, endpoint in mappings(root.get("endpoints")):
        yield from _location(endpoint, ("endpoints", index))
    for name, declared in mapping(mapping(root.get("privacy")).get("classes")).items():
        for index, rule in mappings(mapping(declared).get("allow")):
            yield from _impossible(rule, ("privacy", "classes", name, "allow", index))
    for index, model in mappings(root.get("models")):
        yield from _equal_variants(model, ("models", index))
    for index, update in mappings(root.get("updates")):
        yield from _location(mapping(update.get("train")), ("updates", index, "train"))
    yield from update_checks.sense(root)
    yield from _artifacts(root)
    yield from _policies(root)


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """The known name that a misspelt one most likely stands for."""
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return close[0] if close else None


def hint(word: str, known: Sequence[str]) -> str:
    """What to say after "unknown ...": a likely spelling, or what there is."""
    close = did_you_mean(word, known)
    if close is not None:
        return f", did you mean {show(close)}?"
    return f"; known here: {', '.join(show(name)[1:-1] for name in sorted(set(known)))}" if known else ""


def matches_everything(match: object) -> bool:
    """Whether a policy's match, as written, holds for every request. False when it is malformed."""
    if not isinstance(match, dict):
        return False
    written = cast("Plain", match)
    if not set(written) <= set(_MATCH_KEYS):
        return False
    return all(
        isinstance(globs, list | tuple) and _takes_any(cast("Sequence[object]", globs))
        for globs in written.values()
    )


def _names(root: Plain, section: str) -> list[str] | None:
    """Every name of a section; None when the section or a name in it is missing."""
    items = root.get(section)
    if not isinstance(items, list | tuple):
        return None
    names: list[str] = []
    for item in cast("Sequence[object]", items):
        name = mapping(item).get("name")
        if not isinstance(name, str):
            return None
        names.append(name)
    return names


def _classes(root: Plain) -> list[str] | None:
    classes = mapping(root.get("privacy")).get("classes")
    return sorted(cast("Plain", classes)) if isinstance(classes, dict) else None


def _repeated(root: Plain, section: str, noun: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, item in mappings(root.get(section)):
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield Finding(
                (section, index, "name"), f"another {noun} is already named {show(name)}: rename one"
            )
        seen.add(name)


def _gateways(root: Plain) -> Iterator[Finding]:
    """The gateway's own name and its peers' names and tokens: each tells one gateway from all others."""
    gateway = mapping(root.get("gateway"))
    own = gateway.get("name")
    for index, endpoint in mappings(root.get("endpoints")):
        if isinstance(own, str) and endpoint.get("name") == own:
            yield Finding(
                ("endpoints", index, "name"),
                f"{show(own)} is this gateway's own name: an endpoint named so would be taken for a way back"
                " to it; rename one",
            )
    seen: dict[str, set[str]] = {"name": set(), "token": set()}
    for index, peer in mappings(gateway.get("peers")):
        loc: Loc = ("gateway", "peers", index)
        name, token = peer.get("name"), peer.get("token")
        if isinstance(name, str):
            if name == own:
                yield Finding(
                    (*loc, "name"), f"{show(name)} is this gateway's own name: a peer is another gateway"
                )
            elif name in seen["name"]:
                yield Finding((*loc, "name"), f"another peer is already named {show(name)}: rename one")
            seen["name"].add(name)
        if isinstance(token, str):
            if token in seen["token"]:
                yield Finding((*loc, "token"), "another peer already has this token: give each its own")
            seen["token"].add(token)


def _unknown(item: Plain, key: str, loc: Loc, noun: str, known: Sequence[str]) -> Iterator[Finding]:
    name = item.get(key)
    if isinstance(name, str) and name not in known:
        yield Finding((*loc, key), f"{noun} {show(name)} is not declared{hint(name, known)}")


def _location(item: Plain, loc: Loc) -> Iterator[Finding]:
    location = mapping(item.get("location"))
    tier = location.get("tier")
    if not isinstance(tier, str) or tier not in _TIERS:
        return
    here = (*loc, "location")
    if tier in _WITH_SITE and location.get(tier) is None and not any(k not in _LOCATION for k in location):
        yield Finding(here, f"a place on tier {tier} must name its {tier}: add {tier}: NAME")
    if tier != "device" and location.get("device") is not None:
        yield Finding(
            (*here, "device"), f"a place on tier {tier} has no device: remove it or use tier device"
        )
    if tier not in _WITH_SITE and location.get("site") is not None:
        yield Finding((*here, "site"), f"a place on tier {tier} has no site: remove it or use tier site")


_LOCATION = frozenset({"tier", "region", "site", "device"})


def _impossible(rule: Plain, loc: Loc) -> Iterator[Finding]:
    tiers = texts(rule.get("tier"))
    same = texts(rule.get("same")) or []
    if not tiers or any(tier not in _TIERS for tier in tiers):
        return
    wanted = ", ".join(tiers)
    if "device" in same and "device" not in tiers:
        yield Finding(
            loc, f"this rule allows nothing: tier {wanted} has no device; add device to tier or drop same"
        )
    elif ("site" in same or rule.get("site") is not None) and not _WITH_SITE.intersection(tiers):
        yield Finding(
            loc,
            f"this rule allows nothing: tier {wanted} has no site; add site to tier or drop what asks for one",
        )


def _equal_variants(model: Plain, loc: Loc) -> Iterator[Finding]:
    seen: set[tuple[str, str | None, str | None]] = set()
    name = model.get("name")
    own = name if isinstance(name, str) else None
    for index, variant in mappings(model.get("variants")):
        endpoint = variant.get("endpoint")
        named = variant.get("model")
        version = variant.get("version")
        if not isinstance(endpoint, str) or not isinstance(version, str | None):
            continue
        if not isinstance(named, str | None):
            continue
        key = (endpoint, own if named is None else named, version)
        if key in seen:
            yield Finding(
                (*loc, "variants", index),
                "this variant equals an earlier one: remove it and add up the weights",
            )
        seen.add(key)


def _artifacts(root: Plain) -> Iterator[Finding]:
    """Who runs models itself needs to be told what; whoever does not has its own."""
    kinds: dict[str, object] = {}
    for _, endpoint in mappings(root.get("endpoints")):
        name = endpoint.get("name")
        if isinstance(name, str):
            kinds[name] = endpoint.get("kind")
    first: dict[tuple[str, str, str], str] = {}
    for index, model in mappings(root.get("models")):
        for number, variant in mappings(model.get("variants")):
            loc: Loc = ("models", index, "variants", number)
            target, artifact = variant.get("endpoint"), variant.get("artifact")
            if variant.get("batching") is not None and artifact is None:
                yield Finding((*loc, "batching"), _BATCHING_ALONE)
            kind = kinds.get(target) if isinstance(target, str) else None
            if not isinstance(kind, str) or not isinstance(target, str):
                continue
            if kind not in RUNS_ARTIFACTS:
                if artifact is not None:
                    yield Finding(
                        (*loc, "artifact"),
                        f"{show(target)} is of kind {show(kind)} and has its own models: an artifact is for"
                        " kind pool or edge",
                    )
                continue
            if artifact is None:
                what = "a device group" if kind == "edge" else "a pool"
                yield Finding(loc, f"{show(target)} is {what} and runs what it is given: add artifact: FILE")
            elif isinstance(artifact, str):
                yield from _other_artifact(first, model, variant, target, artifact, loc)


RUNS_ARTIFACTS = frozenset({"pool", "edge"})
"""Endpoint kinds that run the variants' artifacts."""
_BATCHING_ALONE = (
    "batching is for a variant with an artifact: an endpoint that has its own models batches itself"
)


def _other_artifact(
    first: dict[tuple[str, str, str], str],
    model: Plain,
    variant: Plain,
    endpoint: str,
    artifact: str,
    loc: Loc,
) -> Iterator[Finding]:
    called = model.get("name") if variant.get("model") is None else variant.get("model")
    version = variant.get("version") or "1"
    if not isinstance(called, str) or not isinstance(version, str):
        return
    if first.setdefault((endpoint, called, version), artifact) != artifact:
        yield Finding(
            (*loc, "artifact"),
            f"{show(endpoint)} already runs another artifact as {show(called)} version {version}: set another"
            " version or model",
        )


def _policies(root: Plain) -> Iterator[Finding]:
    policies = list(mappings(root.get("policies")))
    for index, policy in policies:
        yield from _globs(policy, ("policies", index, "match"))
        yield from _tenants(policy, ("policies", index, "match", "tenants"))
    if not policies:
        return
    for index, policy in policies[:-1]:
        if matches_everything(policy.get("match")):
            yield Finding(
                ("policies", index, "match"),
                f"policy {show(policy.get('name'))} matches everything, so no later one is reached: move it to the end",
            )
    index, last = policies[-1]
    match: object = last.get("match")
    if _well_formed(match) and not matches_everything(match):
        yield Finding(
            ("policies", index, "match"),
            "the last policy must match everything: end with one that has match: {}",
        )


def _tenants(policy: Plain, loc: Loc) -> Iterator[Finding]:
    """Without tenants every request comes from the one that has no name."""
    globs = mapping(policy.get("match")).get("tenants")
    if isinstance(globs, list) and globs and not _takes_any(cast("list[object]", globs)):
        yield Finding(
            loc,
            'policies.match.tenants other than ["*"] is not served by this version: leave it out or write ["*"]',
        )


def _takes_any(globs: Sequence[object]) -> bool:
    return any(isinstance(glob, str) and glob and not glob.strip("*") for glob in globs)


def _well_formed(match: object) -> bool:
    if not isinstance(match, dict):
        return False
    written = cast("Plain", match)
    return set(written) <= set(_MATCH_KEYS) and all(texts(globs) for globs in written.values())


def _globs(policy: Plain, loc: Loc) -> Iterator[Finding]:
    for key, globs in mapping(policy.get("match")).items():
        if not isinstance(globs, list | tuple):
            continue
        for index, glob in enumerate(cast("Sequence[object]", globs)):
            if isinstance(glob, str) and re.search(r"\[(?!!?[^\]]+\])", glob):
                yield Finding(
                    (*loc, key, index),
                    f"{show(glob)} has a '[' that is not closed: write [abc] or [[] for itself",
                )
