"""Everything a data plane replica is made of, wired together on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any, cast

import gateway
from gateway.core.config import EndpointConfig
from gateway.core.plugins import discover
from gateway.core.ports import Endpoint, Health
from gateway.core.request import Options
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.handlers import Handlers
from gateway.frontends.http_lane import HttpLane
from gateway.pipeline.director import Director
from gateway.pipeline.dispatch import Dispatcher
from gateway.pipeline.monitor import Monitor
from gateway.pipeline.records import DecisionRing
from gateway.pipeline.state import ReplicaState
from gateway.routing.record import to_record
from gateway.serve import views
from gateway.serve.passage import OperatorCall, OperatorPassage
from gateway.serve.scrape_listener import ScrapeListener
from gateway.serve.settings import ReplicaSettings
from gateway.store.profiles import ProfileStore
from gateway.telemetry import Telemetry
from oip.errors import OipError
from oip.reasons import Reason

HOUSEKEEPING_S = 2.0
"""How often stored profiles are looked for and figures are let grow old."""


CALLERS_MISTAKES = frozenset({Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION, Reason.BAD_OPTION})
"""Refusals of a dry run that are errors in the question rather than its answer."""


class Runtime:
    """One replica's endpoints, state, pipeline and listeners. Everything runs on the loop of `start`."""

    def __init__(self, settings: ReplicaSettings, operator: OperatorCall) -> None:
        self._settings = settings
        self._operator = operator
        self._state = ReplicaState(settings.config, settings.revision)
        self._telemetry = Telemetry(settings.config.telemetry, settings.config.gateway.name)
        self._records = DecisionRing(secrets.token_hex(4))
        self._profiles = ProfileStore(settings.state_dir)
        self._profiles_seen: object = None
        self._endpoints: dict[str, Endpoint] = {}
        self._monitors: dict[str, Monitor] = {}
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin serving. Raises OSError for an address that cannot be bound, ValueError for stored
        profiles that cannot be read."""
        config, listen = self._settings.config, self._settings.listen
        self._telemetry.start()
        self._telemetry.metrics.config_revision(self._settings.revision)
        self._read_profiles()
        kinds = cast("dict[str, Callable[[EndpointConfig], Endpoint]]", discover("gateway.backends"))
        for declared in config.endpoints:
            self._endpoints[declared.name] = kinds[declared.kind](declared)
        for name, endpoint in self._endpoints.items():
            await endpoint.start()
            self._monitors[name] = Monitor(
                endpoint, self._state.models_of(name), lambda health, name=name: self._heard(name, health)
            )
        # The first look comes before the first request, so that a gateway that says it is up knows its places.
        await asyncio.gather(*(monitor.look() for monitor in self._monitors.values()))
        for monitor in self._monitors.values():
            monitor.start()
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        dispatcher = Dispatcher(
            self._state, self._endpoints, lambda name: self._monitors[name].look_now(), time.monotonic
        )
        self._director = Director(
            config, self._state, self._endpoints, dispatcher, self._records, self._telemetry
        )
        body_bytes = int(config.gateway.limits.max_body_mb * 2**20)
        self._codec_pool = CodecPool()
        codecs = binding_codecs(self._codec_pool, body_bytes)
        handlers = Handlers(self._director, codecs, name="tidegate", version=gateway.__version__)
        self._grpc = GrpcLane(handlers, listen.grpc.host, listen.grpc.port, max_message_bytes=body_bytes)
        self._http = HttpLane(
            handlers,
            OperatorPassage(self._operator),
            listen.http.host,
            listen.http.port,
            max_body_bytes=body_bytes,
        )
        self._scrape = ScrapeListener(self._telemetry.metrics, listen.metrics)
        await self._grpc.start()
        await self._http.start()
        await self._scrape.start()

    def addresses(self) -> dict[str, str]:
        """Where the listeners are, as IP:PORT by name."""
        listen = self._settings.listen
        return {"http": str(listen.http), "grpc": str(listen.grpc), "metrics": str(listen.metrics)}

    async def drain(self, grace_s: float) -> None:
        """Say not ready, finish what runs (at most `grace_s`), close everything."""
        started = time.monotonic()
        await self._director.drain(grace_s)
        left = max(1.0, grace_s - (time.monotonic() - started))
        await asyncio.gather(self._grpc.drain(left), self._http.drain(left))
        await self._codec_pool.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        await asyncio.gather(*(monitor.close() for monitor in self._monitors.values()))
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))
        await self._scrape.close()
        await asyncio.to_thread(self._telemetry.shutdown)

    async def endpoints_view(self) -> list[dict[str, Any]]:
        return await views.endpoints(
            self._settings.config, self._state.snapshot, self._endpoints, time.monotonic()
        )

    async def models_view(self) -> list[dict[str, Any]]:
        return views.models(self._settings.config, self._state.snapshot)

    async def dry_run(self, query: dict[str, Any]) -> dict[str, Any]:
        """The record of the decision that the request of `query` (a RouteQuery's fields) would get."""
        if query["tenant"] is not None:
            raise OipError(Reason.BAD_OPTION, f"no tenant {query['tenant']!r}: no tenants are configured")
        options = Options(
            privacy=query["privacy"],
            policy=query["policy"],
            deadline_ms=query["deadline_ms"],
            max_cost=query["max_cost"],
            site=query["site"],
            device=query["device"],
        )
        decision = self._director.dry_run(query["model"], query["version"], options, query["payload_bytes"])
        if decision.refused is not None and decision.refused in CALLERS_MISTAKES:
            raise OipError(decision.refused, decision.message)
        return to_record(decision)

    async def decision(self, decision_id: str) -> dict[str, Any] | None:
        return self._records.get(decision_id)

    def _heard(self, name: str, health: Health) -> None:
        self._state.heard(name, health)
        self._telemetry.metrics.endpoint_up(name, health.up)

    def _read_profiles(self) -> None:
        seen = self._profiles.change_token()
        if seen != self._profiles_seen:
            self._state.profiles(self._profiles.load(), time.monotonic(), time.time())
            self._profiles_seen = seen

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            with contextlib.suppress(ValueError):  # a broken file keeps the figures there are
                self._read_profiles()
            self._state.tick(time.monotonic())
