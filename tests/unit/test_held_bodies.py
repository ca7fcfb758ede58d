"""The budget of body bytes: who is refused, and that everything comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.errors import Refusal
from gateway.frontends.http_body import HttpBody
from oip.held import BodyBudget
from oip.reasons import Reason
from tests.support.fakes import CODEC, BytesBody, bench, call_of, config_of, request, response


def test_what_passes_the_limit_is_refused_and_not_counted():
    budget = BodyBudget(10, "gateway", Refusal)
    with budget.share() as first, budget.share() as second:
        first.take(6)
        second.take(4)
        for refused in (second.take, second.check):
            with pytest.raises(Refusal, match="fill the 10 bytes") as caught:
                refused(1)
            assert caught.value.reason is Reason.OVERLOADED
        assert budget.held == 10
    assert budget.held == 0


def test_a_body_in_another_form_counts_with_its_new_size():
    budget = BodyBudget(10, "gateway", Refusal)
    with budget.share() as share:
        share.take(3)
        share.become(10)
        assert budget.held == 10
        share.become(2)
        assert budget.held == 2
        with pytest.raises(Refusal):
            share.become(11)
    assert budget.held == 0


def body_of(chunks: Sequence[bytes], headers: Sequence[tuple[str, str]] = ()) -> HttpBody:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return HttpBody(receive, headers, max_bytes=100, idle_s=5)


async def test_chunks_are_held_as_they_arrive():
    budget = BodyBudget(10, "gateway", Refusal)
    with pytest.raises(Refusal) as caught, budget.share() as share:
        await body_of([b"12345", b"67890", b"x"]).read(share)
    assert caught.value.reason is Reason.OVERLOADED
    assert budget.held == 0


async def test_a_declared_length_that_has_no_room_is_refused_unread():
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    budget = BodyBudget(10, "gateway", Refusal)
    with budget.share() as share, pytest.raises(Refusal) as caught:
        await HttpBody(receive, [("content-length", "11")], max_bytes=100, idle_s=5).read(share)
    assert caught.value.reason is Reason.OVERLOADED


async def test_a_body_that_is_announced_and_not_sent_takes_no_room():
    async def receive() -> dict[str, Any]:
        waiting.set()
        await asyncio.Event().wait()
        return {}

    waiting = asyncio.Event()
    budget = BodyBudget(10, "gateway", Refusal)
    with budget.share() as share:
        body = HttpBody(receive, [("content-length", "10")], max_bytes=100, idle_s=5)
        reading = asyncio.create_task(body.read(share))
        await waiting.wait()
        assert budget.held == 0
        reading.cancel()


async def test_a_cancelled_request_gives_its_bytes_back():
    """The budget holds 16 bodies of the largest size: 16 wait, one is refused, one leaves, one comes in."""
    size = 2**16
    gateway = {**config_of().gateway.model_dump(), "limits": {"max_body_mb": size / 2**20}}
    b = await bench(config_of(gateway=gateway))
    full = asyncio.Event()
    release = asyncio.Event()
    asked = 0

    async def behaviour(message: Any, timeout_s: float) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 16:
            full.set()
        await release.wait()
        return response(message.model_name)

    for endpoint in b.endpoints.values():
        endpoint.behaviour = behaviour
    payload = request(payload=b"\0" * (size - 512))
    waiting = [asyncio.create_task(b.director.infer(call_of(BytesBody(payload)), CODEC)) for _ in range(16)]
    await full.wait()
    refused = await b.director.infer(call_of(BytesBody(payload)), CODEC)
    assert refused.error is not None
    assert refused.error.reason is Reason.OVERLOADED
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    release.set()
    assert (await b.director.infer(call_of(BytesBody(payload)), CODEC)).error is None
    assert [(await call).error for call in waiting[1:]] == [None] * 15
