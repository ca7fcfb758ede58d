"""The scrape's listener closes at once, whoever is still connected."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.serve.scrape_listener import ScrapeListener
from gateway.serve.settings import Address
from gateway.telemetry import Metrics
from gateway.telemetry.merged import as_text


async def render(accept: str) -> tuple[bytes, str]:
    return as_text(list(Metrics().collect()), accept)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


async def test_client_that_does_not_read_does_not_hold_the_close():
    port = free_port()
    listener = ScrapeListener(render, Address("127.0.0.1", port))
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
    assert await reader.read(1)
    async with asyncio.timeout(10):
        await listener.close()
    writer.close()


async def test_taken_address_is_told_with_its_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match=f"metrics: cannot listen on {address}"):
            await ScrapeListener(render, address).start()


@pytest.mark.parametrize(
    "text", ["8080", "localhost", "127.0.0.1:", "127.0.0.1:70000", "host:80", "127.0.0.1:٨"]
)
def test_address_that_is_none_is_refused(text: str):
    with pytest.raises(ValueError, match="give IP:PORT"):
        Address.parse(text)


def test_addresses_in_both_families():
    assert Address.parse("localhost:0") == ("127.0.0.1", 0)
    assert str(Address.parse("[::1]:8080")) == "[::1]:8080"
