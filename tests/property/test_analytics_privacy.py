"""What reaches control's store, and what leaves it for training, in random worlds of classes, places and
origins, held against rules that are written down once more here."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from edgewire.allowed import AllowedRule, of_rules
from edgewire.places import Place, Tier
from edgewire.signals import CONFIDENCE
from gateway.analytics.consent import Consent
from gateway.analytics.evidence import EvidenceBook
from gateway.analytics.ingest import Ingest
from gateway.analytics.samples import Samples
from gateway.core.config import Config
from gateway.edgehub.groups import EdgeConfig
from gateway.store.database import open_database
from gateway.store.tables import samples
from tests.support.configs import config_from
from tests.support.reports import Releases, fresh, record, report, sample, window

Rule = Mapping[str, tuple[str, ...]]
MODELS = 40
WORLDS = 6
TIERS = [tier.value for tier in Tier]
LOCATIONS = [
    {"tier": tier, "region": region, "site": site, "device": device}
    for tier, region, site, device in itertools.product(
        TIERS, (None, "r1", "r2"), (None, "s1", "s2"), (None, "d1", "d2")
    )
    if (device is not None) == (tier == "device") and (site is not None or tier != "site")
]
PARTS = {"tier": TIERS, "region": ["r1", "r2"], "site": ["s1", "s2"], "device": ["d1", "d2"]}


def place_of(location: Mapping[str, str | None]) -> Place:
    return Place(Tier(location["tier"]), location["region"], location["site"], location["device"])


@dataclass(frozen=True)
class World:
    """By model: its class's rules (and those it is narrowed or widened to later), where it is trained, and
    the rules of the set that each of its requests came with."""

    gateway: dict[str, str | None]
    source: dict[str, str | None]
    by_gateway: bool
    classes: list[list[Rule]]
    later: list[list[Rule]]
    training: list[dict[str, str | None]]
    sets: list[list[Rule]]


def some_rules(rng: random.Random, parts: Iterable[str]) -> list[Rule]:
    found: list[Rule] = []
    for _ in range(rng.choice((1, 1, 2))):
        rule = {
            part: tuple(rng.sample(PARTS[part], rng.randint(1, len(PARTS[part]))))
            for part in parts
            if part != "same" and rng.random() < 0.45
        }
        if "same" in parts and rng.random() < 0.5:
            rule["same"] = tuple(rng.sample(["site", "device"], rng.choice((1, 1, 2))))
        found.append(rule or {"tier": tuple(TIERS)})
    return found


def world_of(seed: int) -> World:
    rng = random.Random(seed)
    in_class, in_set = ("tier", "region", "site", "same"), ("tier", "region", "site", "device")
    classes = [some_rules(rng, in_class) for _ in range(MODELS)]
    devices = [location for location in LOCATIONS if location["tier"] == "device"]
    return World(
        rng.choice(LOCATIONS),
        rng.choice(devices),
        rng.random() < 0.25,
        classes,
        [rules if rng.random() < 0.5 else some_rules(rng, in_class) for rules in classes],
        [rng.choice(LOCATIONS) for _ in range(MODELS)],
        [some_rules(rng, in_set) for _ in range(MODELS)],
    )


def config_of(world: World, classes: list[list[Rule]]) -> Config:
    return config_from(
        {
            "version": 1,
            "gateway": {"name": "gw", "location": world.gateway},
            "endpoints": [
                EdgeConfig(name="cameras", kind="edge"),
                {"name": "e", "kind": "triton", "location": world.gateway},
            ],
            "models": [
                {
                    "name": f"m{n}",
                    "privacy": f"c{n}",
                    "variants": [{"endpoint": "cameras"}, {"endpoint": "e"}],
                }
                for n in range(MODELS)
            ],
            "privacy": {
                "default": "c0",
                "classes": {f"c{n}": {"allow": [dict(r) for r in rules]} for n, rules in enumerate(classes)},
            },
            "policies": [{"name": "all", "match": {}, "weights": {"latency": 1}}],
            "updates": [
                {
                    "model": f"m{n}",
                    "samples": {"collect": "hard", "labels": {"teacher": "e"}},
                    "train": {"entrypoint": "m:run", "location": where},
                }
                for n, where in enumerate(world.training)
            ],
        }
    )


def permits(
    rules: list[Rule], place: Mapping[str, str | None], origin: tuple[str | None, str | None]
) -> bool:
    """The rules of privacy, told again: some rule of which every part holds."""
    site, device = origin
    for rule in rules:
        holds = True
        for part, wanted in rule.items():
            if part != "same":
                holds = holds and place[part] in wanted
                continue
            for one in wanted:
                if one == "site":
                    holds = holds and site is not None and place["site"] == site
                else:
                    holds = holds and device is not None and place["device"] == device
                    holds = holds and (site is None or place["site"] == site)
        if holds:
            return True
    return False


def text_of(rules: list[Rule]) -> str:
    return of_rules(
        AllowedRule(
            frozenset(map(Tier, rule["tier"])) if "tier" in rule else None,
            *(frozenset(rule[part]) if part in rule else None for part in ("region", "site", "device")),
        )
        for rule in rules
    ).encode()


async def check(folder: Path, world: World) -> tuple[int, int, int]:
    """Report of every model in the world and hold what is stored and handed out against the rules. Gives
    how many samples were kept, how many models' values counted, and how many samples were handed out."""
    engine = open_database(folder)
    consent = Consent(config_of(world, world.classes))
    ingest = Ingest(engine, Releases(), consent, 10, lambda: 1e6)
    at = world.gateway if world.by_gateway else world.source
    origin = (at["site"], at["device"])
    nowhere = ("nowhere", None)
    records: list[Any] = []
    for n in range(MODELS):
        counted, kept = window(1, confidences=(0.5,)), sample(float(n), allowed=text_of(world.sets[n]))
        counted.model = kept.model = f"m{n}"
        records += [record(2 * n + 1, counted), record(2 * n + 2, kept)]
    source = "gateway:r1" if world.by_gateway else f"device:{world.source['device']}"
    await ingest.take(source, place_of(world.source), report(*records))

    async with engine.begin() as connection:
        stored = set((await connection.execute(select(samples.c.model))).scalars())
    book = EvidenceBook(engine, Releases())
    counting: set[str] = set()
    for n in range(MODELS):
        found = await book.evidence(f"m{n}", "1", 0, 1e9)
        assert found.answered == 1, "plain counts are always counted"
        if CONFIDENCE in found.signals:
            counting.add(f"m{n}")
    may_count = {f"m{n}" for n in range(MODELS) if permits(world.classes[n], world.gateway, origin)}
    assert counting == may_count
    may_keep = {
        f"m{n}"
        for n in range(MODELS)
        if f"m{n}" in may_count
        and permits(world.classes[n], world.training[n], origin)
        and permits(world.sets[n], world.gateway, nowhere)
        and permits(world.sets[n], world.training[n], nowhere)
    }
    assert stored == may_keep

    handed = 0
    later = Samples(engine, Consent(config_of(world, world.later)))
    rng = random.Random(1)
    for n in range(MODELS):
        for where in (world.training[n], rng.choice(LOCATIONS)):
            out = await later.unlabelled(f"m{n}", place_of(where), 9)
            may_go = permits(world.later[n], where, (origin[0], None)) and permits(
                world.sets[n], where, nowhere
            )
            assert len(out) == (f"m{n}" in may_keep and may_go)
            handed += len(out)
    await engine.dispose()
    return len(stored), len(counting), handed


async def test_only_what_every_rule_allows_is_kept_counted_and_handed_out(tmp_path: Path):
    seen = []
    for seed in range(WORLDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen.append(await check(fresh(folder), world_of(seed)))
    kept, counted, handed = (sum(column) for column in zip(*seen, strict=True))
    assert 10 < kept < counted < MODELS * WORLDS
    assert handed > 10


LEAKS = {
    "the class is not asked before a sample is kept": (
        "may_keep",
        lambda self, model, origin, allowed: (
            allowed.allows(self.gateway) and allowed.allows(self.training(model))
        ),
    ),
    "the sample's own set is not asked": (
        "may_keep",
        lambda self, model, origin, allowed: (
            self._of(model, origin).allows(self.gateway)
            and self._of(model, origin).allows(self.training(model))
        ),
    ),
    "the training place is not asked": (
        "may_keep",
        lambda self, model, origin, allowed: self._of(model, origin).narrowed(allowed).allows(self.gateway),
    ),
    "values are counted of every model": ("may_count", lambda self, model, origin: True),
    "samples are handed out by their own set alone": (
        "may_go",
        lambda self, model, origin, allowed, place: allowed.allows(place),
    ),
    "every device's data is taken for the gateway's": (
        "origin_of",
        lambda self, source, place: ORIGIN_OF(self, "gateway:", place),
    ),
}
ORIGIN_OF = Consent.origin_of


@pytest.mark.parametrize("leak", LEAKS)
async def test_a_planted_leak_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak: str):
    name, planted = LEAKS[leak]
    monkeypatch.setattr(Consent, name, planted)
    caught = 0
    for seed in range(WORLDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            await check(fresh(folder), world_of(seed))
        except AssertionError:
            caught += 1
            break
    assert caught
