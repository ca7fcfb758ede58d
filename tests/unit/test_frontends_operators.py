"""Who a call comes from, over both bindings; the rule itself is also tested where the operator API uses it."""

from __future__ import annotations

import pytest

from gateway.core.errors import Refusal
from gateway.frontends.operators import grpc_client, refuse_stranger
from oip.reasons import Reason


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("ipv6:[fe80::1%25lo]:5", "fe80::1%lo"),
        ("ipv4:10.0.0.1:5", "10.0.0.1"),
        ("unix:/run/gw.sock", ""),
        ("unknown", ""),
        ("", ""),
    ],
)
def test_the_address_in_a_grpc_peer(peer: str, client: str):
    assert grpc_client(peer) == client


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1"])
def test_operators_are_on_this_machine(client: str):
    refuse_stranger(client, [("user-agent", "grpc"), ("key-bin", b"\xff")])
    with pytest.raises(Refusal) as caught:
        refuse_stranger(client, [("x-forwarded-for", "127.0.0.1")])
    assert caught.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize("client", ["", "10.0.0.1", "fe80::1%lo", "::ffff:10.0.0.1"])
def test_everybody_else_is_not_one(client: str):
    with pytest.raises(Refusal, match="comes from elsewhere"):
        refuse_stranger(client, [])
