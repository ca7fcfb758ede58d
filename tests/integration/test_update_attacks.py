"""Updates that somebody bent, each validly formed: refused with a reason, the old model serving and answering."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import TargetFile

from edge_agent.update import DeviceModels
from edgewire.v1 import edge_pb2
from oip.errors import OipError
from oip.reasons import Reason
from tests.support import tflite_models as models
from tests.support.tflite_models import Hub, output, request, response
from tests.support.waiting import until

ACTIVE, FAILED = edge_pb2.ModelState.ACTIVE, edge_pb2.ModelState.FAILED
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)
Wanted = edge_pb2.DesiredModel
PAST = datetime.now(UTC).replace(microsecond=0) - timedelta(days=30)


class Attacked:
    """A device on which version 2 of digits serves, with order 2, and the hub that lies to it."""

    def __init__(self, device: DeviceModels, hub: Hub, folder: Path) -> None:
        self.device = device
        self.hub = hub
        self.golden = models.digits_golden(folder)
        self.wanted = models.digits_model().predict(PIXELS)
        self.one = hub.desired("digits", models.digits_int8_file(), "1")
        self.two = hub.desired("digits", models.digits_file(), "2", self.golden)
        self.next = 2
        self.serves = self.two

    @property
    def state(self) -> edge_pb2.ModelState:
        (found,) = self.device.states()
        return found

    async def begin(self) -> None:
        self.hub.wish(self.device, self.two)
        await until(lambda: self.state.state == ACTIVE, 30)

    def another(self, data: bytes | None = None, vectors: bytes = b"", **custom: Any) -> Wanted:
        """The next version, signed with whatever is said besides."""
        self.next += 1
        return self.hub.desired(
            "digits", data or models.digits_int8_file(), str(self.next), vectors, custom=custom
        )

    async def refused(self, wanted: Wanted, name: str = "") -> str:
        """The reason; fails the test when the old model does not serve."""
        self.hub.wish(self.device, wanted)
        await until(lambda: self.state.state != edge_pb2.ModelState.FETCHING, 30)
        assert self.state.state == FAILED, name
        assert (self.state.digest, self.state.active_version) == (wanted.digest, self.serves.version), name
        assert self.state.active_digest == self.serves.digest, name
        answer = await self.device.infer(request("digits", pixels=PIXELS), 20)
        assert response(answer).model_version == self.serves.version, name
        np.testing.assert_allclose(output(answer), self.wanted, atol=0.2)
        assert len(self.state.reason) < 300, name
        assert self.state.reason.endswith("."), name
        assert "\n" not in self.state.reason, name
        return self.state.reason

    async def updates(self) -> None:
        """Whatever was tried on it, it takes what is rightly signed."""
        wanted = self.another()
        self.hub.wish(self.device, wanted)
        await until(lambda: self.state.active_version == wanted.version, 30)
        assert self.state.state == ACTIVE
        self.serves = wanted


@pytest_asyncio.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[Attacked]:
    device = DeviceModels(tmp_path / "models")
    await device.start()
    made = Attacked(device, Hub(), tmp_path)
    await made.begin()
    yield made
    await device.close()


def changed(wanted: Wanted, **fields: Any) -> Wanted:
    found = Wanted()
    found.CopyFrom(wanted)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def of_other_model(a: Attacked) -> Wanted:
    return a.hub.desired("other", models.difference(), "3")


def swapped(a: Attacked) -> Wanted:
    """Another model's blob, validly signed, under this one's name."""
    other = of_other_model(a)
    return changed(a.another(), digest=other.digest, size=other.size)


def wrong_target(a: Attacked) -> Wanted:
    other = of_other_model(a)
    return changed(a.another(), digest=other.digest, size=other.size, target=other.target)


def golden_unsaid(a: Attacked) -> Wanted:
    return changed(a.another(vectors=a.golden), golden_target="", golden_digest="", golden_size=0)


def golden_of_another(a: Attacked) -> Wanted:
    """That version's own are wrong for what is in the file, so others' would let it pass."""
    return changed(
        a.another(vectors=a.golden + b"x"),
        golden_target=a.two.golden_target,
        golden_digest=a.two.golden_digest,
        golden_size=a.two.golden_size,
    )


def golden_swapped(a: Attacked) -> Wanted:
    return changed(
        a.another(vectors=a.golden + b"x"), golden_digest=a.two.golden_digest, golden_size=a.two.golden_size
    )


def golden_added(a: Attacked) -> Wanted:
    return changed(
        a.another(),
        golden_target=a.two.golden_target,
        golden_digest=a.two.golden_digest,
        golden_size=a.two.golden_size,
    )


def by_other_hash(a: Attacked) -> Wanted:
    wanted = a.another()
    file = a.hub.signed.targets[wanted.target]
    weak = TargetFile(file.length, {"md5": "0" * 32}, wanted.target, file.unrecognized_fields)
    a.hub.signed.targets[wanted.target] = weak
    a.hub.signed.publish()
    return wanted


def other_bytes(a: Attacked) -> Wanted:
    return a.hub.desired("digits", models.digits_int8_file(), "2", a.golden)


DESIRED: dict[str, tuple[Callable[[Attacked], Wanted], str]] = {
    "a step back to version 1": (lambda a: a.one, r"has order 1, and what serves here has 2"),
    "an order of before": (lambda a: a.another(order=1), r"has order 1, and what serves here has 2"),
    "of another model": (wrong_target, r"is not model 'digits' version '\d+'"),
    "swapped artifacts": (swapped, r"is another file than the one that is desired"),
    "another size": (lambda a: changed(a.another(), size=1), r"is another file"),
    "another version's name": (
        lambda a: changed(a.another(), version="77"),
        r"is not model 'digits' version '77'",
    ),
    "signed as another version": (lambda a: a.another(version="77"), r"is not model 'digits' version"),
    "signed as another model": (lambda a: a.another(model="other"), r"is not model 'digits' version"),
    "golden vectors for the file": (
        lambda a: changed(
            a.another(), target=a.two.golden_target, digest=a.two.golden_digest, size=a.two.golden_size
        ),
        r"is not model 'digits'",
    ),
    "without its golden vectors": (golden_unsaid, r"are not those that are signed with it"),
    "golden vectors of another version": (golden_of_another, r"are not those that are signed with it"),
    "golden vectors that nobody signed with it": (golden_added, r"are not those that are signed with it"),
    "golden vectors with other bytes": (golden_swapped, r"\.golden' is another file"),
    "golden vectors that are not signed": (
        lambda a: a.another(golden="digits/999/tflite.golden"),
        r"are not those that are signed with it",
    ),
    "only to be tried": (lambda a: a.another(trial=True), r"is to be tried, and not to serve"),
    "for other places": (
        lambda a: a.another(places="tier=device;site=plant-8,tier=cloud"),
        r"may not be at the place of this device",
    ),
    "for places that cannot be read": (lambda a: a.another(places="everywhere"), r"may not be at the place"),
    "for no places": (lambda a: a.another(places="none"), r"may not be at the place"),
    "with places of a wrong kind": (lambda a: a.another(places=["site"]), r"cannot be understood"),
    "with empty places": (lambda a: a.another(places=""), r"cannot be understood"),
    "with an order that is none": (lambda a: a.another(order=True), r"cannot be understood"),
    "with an order of text": (lambda a: a.another(order="9"), r"cannot be understood"),
    "with a trial that is neither": (lambda a: a.another(trial="no"), r"cannot be understood"),
    "another format": (lambda a: a.another(format="onnx"), r"is a 'onnx' file"),
    "not signed": (lambda a: changed(a.another(), target="digits/999/tflite"), r"Nothing is signed under"),
    "a name with a way out": (lambda a: changed(a.another(), target="../../root"), r"Nothing is signed"),
    "a name that is long": (lambda a: changed(a.another(), target="d" * 10_000), r"Nothing is signed under"),
    "no name": (lambda a: changed(a.another(), target=""), r"without the name of a signed target"),
    "no SHA-256": (by_other_hash, r"is another file than the one that is desired"),
    "the same version with other bytes": (other_bytes, r"has other bytes than this device got"),
    "of length zero": (lambda a: changed(a.another(b"\0"), size=0), r"is another file"),
}


async def test_what_is_signed_is_not_what_is_desired(attacked: Attacked):
    fetched = len(attacked.hub.asked)
    for name, (attack, reason) in DESIRED.items():
        found = await attacked.refused(attack(attacked), name)
        assert re.search(reason, found), (name, found)
    assert len(attacked.hub.asked) == fetched, "fetched what it may not run"
    await attacked.updates()


async def test_a_return_that_is_signed_anew_is_taken(attacked: Attacked):
    again = attacked.hub.desired("digits", models.digits_int8_file(), "1")
    assert again == attacked.one
    attacked.hub.wish(attacked.device, again)
    await until(lambda: attacked.state.active_version == "1", 30)
    # And what was ordered away is a step back from then on.
    attacked.hub.wish(attacked.device, attacked.two)
    await until(lambda: attacked.state.state == FAILED)
    assert "has order 2, and what serves here has 3" in attacked.state.reason
    assert attacked.state.active_version == "1"


async def test_what_serves_may_be_ordered_anew(attacked: Attacked):
    """Version 1 fell behind when version 2 was signed by a later order, and version 3 by one between."""
    between = attacked.another(order=3)
    assert attacked.hub.desired("digits", models.digits_file(), "2", attacked.golden) == attacked.two
    found = await attacked.refused(between)
    assert "has order 3, and what serves here has 4" in found


class Bent:
    """A repository with a new version, and what an attack does to its files. `seen` are files that the
    device saw long ago."""

    def __init__(self, a: Attacked, seen: dict[str, bytes]) -> None:
        self.a = a
        self.repo = a.hub.signed
        self.seen = seen

    def release(self) -> None:
        self.wanted = self.a.another()

    def put(self, name: str, content: bytes) -> None:
        self.repo.files[name] = content

    def newest(self, role: str) -> str:
        return f"{self.repo.versions[role]}.{role}.json"


def replayed(b: Bent) -> None:
    b.release()
    b.repo.files = {**b.repo.files, **b.seen}


def replayed_timestamp(b: Bent) -> None:
    b.release()
    b.put("timestamp.json", b.seen["timestamp.json"])


def replayed_targets(b: Bent) -> None:
    """Old targets under the new ones' name: mixed versions."""
    b.release()
    b.put(b.newest("targets"), b.seen["1.targets.json"])


def replayed_snapshot(b: Bent) -> None:
    b.release()
    b.put(b.newest("snapshot"), b.seen["1.snapshot.json"])


def expired(*roles: str) -> Callable[[Bent], None]:
    def attack(b: Bent) -> None:
        b.repo.expires = dict.fromkeys(roles, PAST)
        b.release()

    return attack


def by_unknown_key(*roles: str) -> Callable[[Bent], None]:
    def attack(b: Bent) -> None:
        known = dict(b.repo.signers)
        b.repo.signers |= {role: CryptoSigner.generate_ed25519() for role in roles}
        b.release()
        b.repo.signers = known

    return attack


def by_other_role(b: Bent) -> None:
    """The timestamp's key, which lies with the gateway, signs targets."""
    known = dict(b.repo.signers)
    b.repo.signers["targets"] = known["timestamp"]
    b.release()
    b.repo.signers = known


def by_revoked_key(b: Bent) -> None:
    old = dict(b.repo.signers)
    b.repo.signers["targets"] = CryptoSigner.generate_ed25519()
    b.repo.publish_root()
    new, b.repo.signers = b.repo.signers, old
    b.release()
    b.repo.signers = new


def root_of_another(b: Bent) -> None:
    other = CryptoSigner.generate_ed25519()
    known, b.repo.signers = b.repo.signers, dict.fromkeys(b.repo.signers, other)
    b.repo.publish_root()
    b.release()
    b.repo.signers = known


def signatures(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Bent], None]:
    def attack(b: Bent) -> None:
        b.release()
        document = json.loads(b.repo.files["timestamp.json"])
        document["signatures"] = change(document["signatures"])
        b.put("timestamp.json", json.dumps(document).encode())

    return attack


def content(bytes_: bytes, role: str = "timestamp") -> Callable[[Bent], None]:
    def attack(b: Bent) -> None:
        b.release()
        b.put("timestamp.json" if role == "timestamp" else b.newest(role), bytes_)

    return attack


def edited(b: Bent) -> None:
    """An order is raised in what was signed."""
    b.release()
    signed = b.repo.files[b.newest("targets")]
    assert b'"order":1,' in signed
    b.put(b.newest("targets"), signed.replace(b'"order":1,', b'"order":9,'))


def missing(role: str) -> Callable[[Bent], None]:
    def attack(b: Bent) -> None:
        b.release()
        del b.repo.files["timestamp.json" if role == "timestamp" else b.newest(role)]

    return attack


SIGNED: dict[str, tuple[Callable[[Bent], None], str]] = {
    "all of it replayed": (replayed, r"^'timestamp.json' .* is older than what this device has seen"),
    "an old timestamp": (replayed_timestamp, r"^'timestamp.json' .* is older than"),
    "old targets under a new name": (replayed_targets, r"^'\d+.targets.json' .* does not belong to the rest"),
    "an old snapshot under a new name": (replayed_snapshot, r"^'\d+.snapshot.json' .* does not belong to"),
    "frozen": (
        expired("timestamp"),
        r"^'timestamp.json' of the signed metadata has expired by the clock of this device, which says"
        r" \d{4}-\d\d-\d\d \d\d:\d\d UTC: either the clock is wrong, or the gateway signs no more\.$",
    ),
    "an expired snapshot": (expired("snapshot"), r"^'\d+.snapshot.json' .* has expired by the clock"),
    "expired targets": (expired("targets"), r"^'\d+.targets.json' .* has expired by the clock"),
    "an unknown key": (by_unknown_key("targets"), r"^'\d+.targets.json' .* is not signed by a key that"),
    "all keys unknown": (
        by_unknown_key("targets", "snapshot", "timestamp"),
        r"^'timestamp.json' .* is not signed by",
    ),
    "another role's key": (by_other_role, r"^'\d+.targets.json' .* is not signed by a key that"),
    "a revoked key": (by_revoked_key, r"^'\d+.targets.json' .* is not signed by a key that"),
    "a root of somebody's own": (root_of_another, r"^'\d+.root.json' .* is not signed by a key that"),
    "unsigned": (signatures(lambda found: []), r"^'timestamp.json' .* is not signed by"),
    "a signature of length zero": (
        signatures(lambda found: [{**found[0], "sig": ""}]),
        r"^'timestamp.json' .* is not signed by",
    ),
    "a signature of zeros": (
        signatures(lambda found: [{**found[0], "sig": "00" * 64}]),
        r"^'timestamp.json' .* is not signed by",
    ),
    "a signature that is no hex": (
        signatures(lambda found: [{**found[0], "sig": "none"}]),
        r"^'timestamp.json' .* is not signed by",
    ),
    "the same signature twice": (
        signatures(lambda found: [found[0], found[0]]),
        r"^'timestamp.json' .* cannot be read",
    ),
    "signatures that are none": (signatures(lambda found: None), r"^'timestamp.json' .* cannot be read"),
    "edited after it was signed": (edited, r"^'\d+.targets.json' .* is not signed by"),
    "an empty timestamp": (content(b""), r"^'timestamp.json' .* cannot be read"),
    "a timestamp of JSON's null": (content(b"null"), r"^'timestamp.json' .* cannot be read"),
    "a timestamp of nothing but brackets": (content(b"[" * 9000), r"^'timestamp.json' .* cannot be read"),
    "a timestamp that is too long": (
        content(b" " * 16_385),
        r"^'timestamp.json' .* is longer than it may be",
    ),
    "targets that are too long": (content(b" " * 5_000_001, "targets"), r"is longer than it may be"),
    "targets that are no text": (content(b"\xff\xfe", "targets"), r"^'\d+.targets.json' .* cannot be read"),
    "without a timestamp": (missing("timestamp"), r"^The hub has no 'timestamp.json' of the signed metadata"),
    "without targets": (missing("targets"), r"^The hub has no '\d+.targets.json' of the signed metadata"),
}


async def test_the_signed_metadata_is_bent(attacked: Attacked):
    repo = attacked.hub.signed
    seen = dict(repo.files)
    await attacked.updates()
    fetched = len(attacked.hub.asked)
    for name, (attack, reason) in SIGNED.items():
        bent = Bent(attacked, seen)
        attack(bent)
        found = await attacked.refused(bent.wanted, name)
        assert re.search(reason, found), (name, found)
        roots = [at for at in repo.files if at.endswith(".root.json")]
        if name == "a root of somebody's own":
            del repo.files[roots[-1]]
            repo.versions["root"] -= 1
        repo.files = {at: repo.files[at] for at in roots if at in repo.files}
        repo.expires = {}
        repo.publish()
        # Seen by the device, and so the oldest that it takes.
        assert "Nothing is signed" in await attacked.refused(changed(bent.wanted, target="digits/999/tflite"))
    assert len(attacked.hub.asked) == fetched, "fetched what is not signed"
    await attacked.updates()


async def test_endless_data_ends(attacked: Attacked):
    """Of metadata and of an artifact, in large pieces, in empty ones, and more than was signed."""

    async def endless(*asked: Any) -> AsyncGenerator[bytes, None]:
        while True:
            nonlocal sent
            await asyncio.sleep(0)
            sent += 2**16
            yield bytes(2**16)

    async def empty(*asked: Any) -> AsyncGenerator[bytes, None]:
        while True:
            await asyncio.sleep(0)
            yield b""

    sent = 0
    hub = attacked.hub
    hub.fetch = endless
    wanted = attacked.another()
    assert "more than the artifact's" in await attacked.refused(wanted)
    assert sent == 2**16
    hub.fetch = empty
    assert "an empty piece" in await attacked.refused(attacked.another())
    sent = 0
    hub.signed.metadata = endless
    assert "is longer than it may be" in await attacked.refused(wanted)
    assert sent <= 2**20
    hub.signed.metadata = empty
    assert "comes too slowly" in await attacked.refused(wanted)
    del hub.fetch, hub.signed.metadata
    await attacked.updates()


async def test_an_artifact_that_is_cut_short_goes_on_later_and_one_that_is_false_begins_anew(
    attacked: Attacked,
):
    hub, wanted = attacked.hub, attacked.another()
    data = hub.files[wanted.digest]
    hub.files[wanted.digest] = data[:5000]
    assert "5000 of the artifact's" in await attacked.refused(wanted)
    hub.files[wanted.digest] = data[:5000] + bytes(len(data) - 5000)
    assert "does not have the artifact's digest" in await attacked.refused(wanted)
    hub.files[wanted.digest] = data
    hub.asked.clear()
    hub.wish(attacked.device, wanted)
    await until(lambda: attacked.state.active_version == wanted.version, 30)
    assert hub.asked == [(wanted.digest, 0)]


async def test_a_signed_file_of_length_zero_is_no_model(attacked: Attacked):
    wanted = attacked.another(b"\0")
    empty = changed(wanted, digest=attacked.hub.add(b""), size=0)
    attacked.hub.signed.put(
        wanted.target, b"", {"model": "digits", "version": wanted.version, "format": "tflite", "order": 9}
    )
    attacked.hub.signed.publish()
    hub = attacked.hub
    hub.wish(attacked.device, empty)
    await until(lambda: attacked.state.state == FAILED, 30)
    assert "does not work on this device" in attacked.state.reason
    assert attacked.state.active_version == "2"


async def test_a_hub_that_is_away_is_asked_again_and_no_verdict(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("edge_agent.update.decide.FIRST_RETRY_S", 0.01)

    def away(name: str) -> None:
        raise OipError(Reason.UNAVAILABLE, "the hub ended the download with UNAVAILABLE")

    attacked.hub.signed.before = away
    wanted = attacked.another()
    assert await attacked.refused(wanted) == "The hub cannot give the signed metadata."
    attacked.hub.signed.before = lambda name: None
    await until(lambda: attacked.state.active_version == wanted.version, 30)
    assert attacked.state.state == ACTIVE
