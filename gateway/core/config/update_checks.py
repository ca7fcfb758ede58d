"""Updates that are well-formed and could never do anything. Whether a class lets data be where an update
wants it is asked of the policy: gateway.policy.upkeep."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config.plain import Plain, mapping, mappings
from gateway.core.config.problems import Finding, Loc
from gateway.core.config.references import show


def sense(root: Plain) -> Iterator[Finding]:
    """Each entry must have something to train on, and something that runs what comes of it."""
    endpoints = {e["name"]: e for _, e in mappings(root.get("endpoints")) if isinstance(e.get("name"), str)}
    models = {m["name"]: m for _, m in mappings(root.get("models")) if isinstance(m.get("name"), str)}
    for index, update in mappings(root.get("updates")):
        loc: Loc = ("updates", index)
        train, samples = update.get("train"), mapping(update.get("samples"))
        trains = isinstance(train, dict)
        collects = samples.get("collect") == "hard"
        if collects and train is None:
            yield Finding(
                (*loc, "samples", "collect"),
                "samples are kept to be trained on: add train, or leave samples out",
            )
        if trains and mapping(update.get("train")).get("data") is None and not collects:
            yield Finding(
                (*loc, "train"),
                "there is nothing to train on: name data, or let samples be collected (samples.collect: hard)",
            )
        name = update.get("model")
        if not isinstance(name, str) or name not in models:
            continue
        variants = [variant for _, variant in mappings(models[name].get("variants"))]
        kinds = [endpoints.get(v.get("endpoint")) for v in variants]
        if trains and None not in kinds and not any(map(_follows, variants, kinds)):
            yield Finding(
                (*loc, "train"),
                f"nothing would run what is trained: no variant of {show(name)} is on a device group, a pool or a"
                " Triton with a repository without a version of its own",
            )
        teacher = mapping(samples.get("labels")).get("teacher")
        if isinstance(teacher, str) and mapping(endpoints.get(teacher)).get("kind") == "edge":
            yield Finding(
                (*loc, "samples", "labels", "teacher"),
                f"{show(teacher)} is a device group, which runs the model that is to be taught: name an endpoint of"
                " another kind",
            )


def _follows(variant: Plain, endpoint: object) -> bool:
    """Whether it runs the release that stands, whichever that is."""
    place = mapping(endpoint)
    if variant.get("version") is not None:
        return False
    return place.get("kind") in ("edge", "pool") or place.get("repository") is not None
