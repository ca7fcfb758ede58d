"""Any interleaving of enrolments, drains and revocations over one registry, against a model of it."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.devices import Enrolled
from gateway.registry.registry import Registry
from gateway.store.database import migrate, open_database
from oip.errors import OipError

NAMES = st.sampled_from(["cam-a", "cam-b", ""])
CREDENTIALS = st.integers(0, 3).map(lambda n: bytes([n]) * 32)
EVENTS = st.one_of(
    st.tuples(st.just("issue"), NAMES, st.sampled_from([5.0, 1000.0])),
    st.tuples(st.just("enrol"), st.integers(0, 4), NAMES, CREDENTIALS),
    st.tuples(st.just("drain"), NAMES, st.booleans()),
    st.tuples(st.just("revoke"), NAMES),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0])),
)
ROUNDS = st.lists(st.lists(EVENTS, min_size=1, max_size=5), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(rounds=ROUNDS)
def test_token_enrols_one_device_once_whatever_comes_between(rounds: list[list[tuple]]):
    """The events of a round run at once, over two registries on one file, as when a control that was
    replaced is not quite gone."""
    with tempfile.TemporaryDirectory() as folder:
        migrate(Path(folder))
        asyncio.run(_run(Path(folder), rounds))


async def _run(folder: Path, rounds: list[list[tuple]]) -> None:
    now = [1000.0]
    books = [Registry(open_database(folder), lambda: now[0]) for _ in range(2)]
    tokens: list[tuple[str, str, float]] = []
    winners: dict[str, tuple[str, bytes]] = {}
    ever: dict[bytes, str] = {}
    in_time: set[str] = set()

    async def happen(index: int, event: tuple) -> None:
        book = books[index % 2]
        try:
            if event[0] == "issue":
                issued = await book.issue("plant-7", {}, event[1], event[2])
                tokens.append((issued.text, event[1], issued.expires_at))
            elif event[0] == "enrol" and event[1] < len(tokens):
                await _enrol(book, tokens[event[1]], event[2], event[3], now[0], winners, ever, in_time)
            elif event[0] == "drain":
                assert (await book.drain(event[1], event[2])).drained is event[2]
            elif event[0] == "revoke":
                assert (await book.revoke(event[1])).revoked
            elif event[0] == "wait":
                now[0] += event[1]
        except OipError:
            pass  # what may be refused is the rules' own test; here counts what was let through

    before: dict[str, Enrolled] = {}
    for batch in rounds:
        await asyncio.gather(*(happen(index, event) for index, event in enumerate(batch)))
        after = {device.name: device for device in await books[0].devices()}
        digests = [device.credential_sha256 for device in after.values()]
        assert len(set(digests)) == len(digests)
        for name, device in before.items():
            assert name in after, "a device is never lost"
            if device.revoked and after[name].credential_sha256 == device.credential_sha256:
                assert after[name].revoked, "who was shut out stays so"
        before = after
    assert {(d.name, d.credential_sha256) for d in before.values()} <= set(winners.values())


async def _enrol(
    book: Registry,
    token: tuple[str, str, float],
    name: str,
    credential: bytes,
    began: float,
    winners: dict[str, tuple[str, bytes]],
    ever: dict[bytes, str],
    in_time: set[str],
) -> None:
    text, pinned, expires_at = token
    if began < expires_at:
        in_time.add(text)
    device = await book.enrol(text, name, credential)
    assert not device.revoked
    assert replace(device, drained=False) == Enrolled(device.name, "plant-7", {}, credential)
    assert device.name == (pinned or name or f"device-{credential[:4].hex()}")
    assert winners.setdefault(text, (device.name, credential)) == (device.name, credential)
    assert ever.setdefault(credential, text) == text, "a credential is enrolled once"
    assert text in in_time, "nobody asked before it expired"
