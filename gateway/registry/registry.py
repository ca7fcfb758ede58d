"""The registry over its database: each call is one transaction, on disk before it answers."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sqlalchemy import RowMapping, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.registry import rules
from gateway.registry.devices import Enrolled
from gateway.registry.rules import Redemption, Token
from gateway.store.tables import devices, enrolment_tokens
from oip.errors import OipError
from oip.reasons import Reason

logger = logging.getLogger(__name__)


class Issued(NamedTuple):
    """A new token's text, which is nowhere else, and when it expires (seconds since the epoch)."""

    text: str
    expires_at: float


class Registry:
    """Devices and enrolment tokens. Every failure is an OipError; UNAVAILABLE where the database fails,
    and then nothing has changed."""

    def __init__(self, engine: AsyncEngine, wall: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._wall = wall

    async def issue(self, site: str, labels: Mapping[str, str], device: str, ttl_s: float) -> Issued:
        """A token that enrols one device at `site` with `labels`, within `ttl_s` seconds; `device` ""
        leaves the name to the device."""
        text = rules.TOKEN_PREFIX + secrets.token_urlsafe(rules.TOKEN_BYTES)
        async with self._turn() as connection:
            holder = await _device(connection, device)
            digest = rules.digest_of(text)
            token = rules.new_token(digest, site, labels, device, holder, ttl_s, self._wall())
            await connection.execute(insert(enrolment_tokens).values(_token_row(token)))
        return Issued(text, token.expires_at)

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> Enrolled:
        """Redeem a token. The same call made again answers the same."""
        asked = Redemption(device, credential_sha256)
        digest = rules.digest_of(token)
        async with self._turn() as connection:
            found = await _token(connection, digest)
            holder = await _device(connection, rules.wanted_name(found, asked))
            spent = select(enrolment_tokens.c.redeemed_by).where(
                enrolment_tokens.c.credential_sha256 == credential_sha256,
                enrolment_tokens.c.token_sha256 != digest,
            )
            is_spent = (await connection.execute(spent)).first() is not None
            redeemed, enrolled = rules.redeem(found, holder, is_spent, asked, self._wall())
            if redeemed is not found:
                await connection.execute(delete(devices).where(devices.c.name == enrolled.name))
                await connection.execute(insert(devices).values(_device_row(enrolled)))
                change = update(enrolment_tokens).where(enrolment_tokens.c.token_sha256 == digest)
                await connection.execute(change.values(_token_row(redeemed)))
        return enrolled

    async def devices(self) -> tuple[Enrolled, ...]:
        """Every device by name, revoked ones too."""
        async with self._turn() as connection:
            rows = (await connection.execute(select(devices).order_by(devices.c.name))).mappings().all()
        return tuple(_enrolled(row) for row in rows)

    async def drain(self, name: str, drained: bool) -> Enrolled:
        return await self._change(name, lambda device: rules.drained(device, name, drained))

    async def revoke(self, name: str) -> Enrolled:
        return await self._change(name, lambda device: rules.revoked(device, name))

    async def _change(self, name: str, rule: Callable[[Enrolled | None], Enrolled]) -> Enrolled:
        async with self._turn() as connection:
            changed = rule(await _device(connection, name))
            change = update(devices).where(devices.c.name == name)
            await connection.execute(change.values(_device_row(changed)))
        return changed

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            logger.error("the registry's database failed: %s", getattr(error, "orig", None) or error)
            text = f"the registry of devices cannot be read or written ({type(error).__name__}); try again"
            raise OipError(Reason.UNAVAILABLE, text) from None


async def _device(connection: AsyncConnection, name: str) -> Enrolled | None:
    found = await connection.execute(select(devices).where(devices.c.name == name))
    row = found.mappings().first()
    return None if row is None else _enrolled(row)


async def _token(connection: AsyncConnection, digest: bytes) -> Token | None:
    wanted = select(enrolment_tokens).where(enrolment_tokens.c.token_sha256 == digest)
    row = (await connection.execute(wanted)).mappings().first()
    if row is None:
        return None
    return Token(
        row["token_sha256"],
        row["site"],
        row["labels"],
        row["device"] or "",
        row["expires_at"],
        row["redeemed_by"] or "",
        row["credential_sha256"] or b"",
    )


def _enrolled(row: RowMapping) -> Enrolled:
    names = ("name", "site", "labels", "credential_sha256", "drained", "revoked")
    return Enrolled(**{name: row[name] for name in names})


def _device_row(device: Enrolled) -> dict[str, Any]:
    return {
        "name": device.name,
        "site": device.site,
        "labels": dict(device.labels),
        "credential_sha256": device.credential_sha256,
        "drained": device.drained,
        "revoked": device.revoked,
    }


def _token_row(token: Token) -> dict[str, Any]:
    return {
        "token_sha256": token.digest,
        "site": token.site,
        "labels": dict(token.labels),
        "device": token.device or None,
        "expires_at": token.expires_at,
        "redeemed_by": token.redeemed_by or None,
        "credential_sha256": token.credential_sha256 or None,
    }
