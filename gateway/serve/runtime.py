"""Everything a data plane replica is made of, wired together on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import gateway
from gateway.core.config import Config, EndpointConfig
from gateway.core.decision import VariantKey
from gateway.core.fleet import Group
from gateway.core.plugins import discover
from gateway.core.ports import Endpoint, Health, Homes, Standing, Surroundings
from gateway.core.release import Release
from gateway.core.request import Options
from gateway.frontends.codec_pool import CodecPool
from gateway.frontends.codecs import binding_codecs
from gateway.frontends.grpc_lane import GrpcLane
from gateway.frontends.handlers import Handlers
from gateway.frontends.http_lane import HttpLane
from gateway.pipeline.director import Director
from gateway.pipeline.discovery import Discovery
from gateway.pipeline.dispatch import Dispatcher
from gateway.pipeline.following import Following
from gateway.pipeline.monitor import Monitor
from gateway.pipeline.observer import Desk, Observer, observed
from gateway.pipeline.records import DecisionRing
from gateway.pipeline.served import Counts, summed
from gateway.pipeline.siblings import Kind, Siblings
from gateway.pipeline.state import ReplicaState
from gateway.routing.record import to_record
from gateway.serve import views
from gateway.serve.measuring import Measurements
from gateway.serve.passage import OperatorCall, OperatorPassage
from gateway.serve.settings import ReplicaSettings
from gateway.serve.teaching import teach
from gateway.store.profiles import Profile, ProfileStore
from gateway.telemetry import Telemetry
from gateway.telemetry.merged import Families
from gateway.telemetry.metrics import ToldGauge
from gateway.telemetry.settings import State
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 2.0
"""How often stored profiles are looked for and figures are let grow old."""


LEAST_GRACE_S = 1.0
"""What a listener gets to close in, however much of the grace is gone."""
CALLERS_MISTAKES = frozenset(
    {Reason.UNKNOWN_MODEL, Reason.UNKNOWN_VERSION, Reason.MALFORMED, Reason.BAD_OPTION}
)
"""Refusals of a dry run that are errors in the question rather than its answer."""


class Runtime:
    """One replica's endpoints, state, pipeline and listeners. Everything runs on the loop of `start`. What
    it observes goes to `desk`, None: nothing is observed; `standing` tells what is released, None: nothing.
    `homes` and `siblings` are None for a replica that is alone. `name` is the replica's own: with it its
    decisions' ids begin."""

    def __init__(
        self,
        settings: ReplicaSettings,
        operator: OperatorCall,
        desk: Desk | None = None,
        standing: Standing | None = None,
        homes: Homes | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._settings = settings
        self._operator = operator
        self.name = secrets.token_hex(4)
        self._state = ReplicaState(settings.config, settings.revision)
        gateway_name = settings.config.gateway.name
        instance = f"{gateway_name}/{self.name}" if settings.shared else gateway_name
        self._telemetry = Telemetry(settings.config.telemetry, gateway_name, instance)
        self._records = DecisionRing(self.name)
        self._profiles = ProfileStore(settings.state_dir)
        self._profiles_seen: object = None
        self._stored: Sequence[Profile] = ()
        self._endpoints: dict[str, Endpoint] = {}
        self._monitors: dict[str, Monitor] = {}
        self._discovery = Discovery(settings.config, self._endpoints, self._move)
        watched = None if desk is None or not observed(settings.config) else desk
        self._observer = None if watched is None else Observer(settings.config, watched)
        dispatcher = Dispatcher(self._state, self._endpoints, self._lost, time.monotonic, self._observer)
        self._director = Director(
            settings.config,
            self._state,
            self._endpoints,
            dispatcher,
            self._records,
            self._telemetry,
            lambda name: self._monitors[name].look_anew(),
            homes,
            siblings,
        )
        self._measurements = Measurements(
            settings.config,
            self._endpoints,
            lambda name: self._state.snapshot.groups[name],
            self._profiles,
        )
        self._following = None
        if standing is not None:
            self._following = Following(settings.config, self._endpoints, standing, settings.folder)
        self._opened = contextlib.AsyncExitStack()
        """What must be closed, the last opened first."""
        self._grace_until = 0.0

    async def start(self) -> None:
        """Begin serving. Raises OSError for an address that cannot be bound and OipError for an
        endpoint that cannot be made; nothing is left open then."""
        try:
            self._telemetry.start()
            self._opened.push_async_callback(asyncio.to_thread, self._telemetry.shutdown)
            self._telemetry.metrics.config_revision(self._settings.revision)
            self._read_profiles()
            if self._observer is not None:
                self._observer.start()
                self._opened.push_async_callback(self._observer.close)
            await self._start_endpoints()
            await self._start_listeners()
        except BaseException:
            await self._opened.aclose()
            raise

    async def _start_endpoints(self) -> None:
        kinds = cast(
            "dict[str, Callable[[EndpointConfig, Surroundings], Endpoint]]", discover("gateway.backends")
        )
        inside = self._settings.inside
        surroundings = Surroundings(
            self._settings.config,
            self._settings.state_dir,
            self._heard_group,
            hub=f"unix:{inside}" if inside is not None else "",
            shared=self._settings.folder,
        )
        for declared in self._settings.config.endpoints:
            name = declared.name
            endpoint = self._endpoints[name] = kinds[declared.kind](declared, surroundings)
            await endpoint.start()
            self._opened.push_async_callback(endpoint.close)
            monitor = self._monitors[name] = Monitor(
                endpoint,
                self._state.models_of(name),
                lambda health, name=name: self._heard(name, health),
                lambda model, version, signature, name=name: self._state.learnt(
                    VariantKey(name, model, version), signature, time.monotonic()
                ),
                None if declared.discovers is None else functools.partial(self._discovery.look, name),
            )
            self._opened.push_async_callback(monitor.close)
        # The first look comes before the first request, so that a gateway that says it is up knows its places.
        await asyncio.gather(*(monitor.look() for monitor in self._monitors.values()))
        for monitor in self._monitors.values():
            monitor.start()
        self._opened.push_async_callback(self._measurements.close)
        housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        self._opened.callback(housekeeping.cancel)
        if self._following is not None:
            beginning = asyncio.create_task(self._following.begin(), name="begin to follow")
            self._opened.callback(beginning.cancel)

    async def _start_listeners(self) -> None:
        listen, shared = self._settings.listen, self._settings.shared
        body_bytes = int(self._settings.config.gateway.limits.max_body_mb * 2**20)
        pool = CodecPool()
        self._opened.push_async_callback(pool.close)
        codecs = binding_codecs(pool, body_bytes)
        handlers = Handlers(self._director, codecs, name="tidegate", version=gateway.__version__)
        grpc = GrpcLane(
            handlers, listen.grpc.host, listen.grpc.port, max_message_bytes=body_bytes, shared=shared
        )
        http = HttpLane(
            handlers,
            OperatorPassage(self._operator),
            listen.http.host,
            listen.http.port,
            max_body_bytes=body_bytes,
            shared=shared,
        )
        for lane in (grpc, http):
            await lane.start()
            self._opened.push_async_callback(self._drain_lane, lane)

    async def _drain_lane(self, lane: GrpcLane | HttpLane) -> None:
        await lane.drain(max(LEAST_GRACE_S, self._grace_until - time.monotonic()))

    def addresses(self) -> dict[str, str]:
        """Where the listeners are, as IP:PORT by name."""
        listen = self._settings.listen
        return {"http": str(listen.http), "grpc": str(listen.grpc)}

    def endpoint_states(self) -> dict[str, str]:
        """Why each endpoint is not up, by name; "" for one that is."""
        states = self._state.snapshot.endpoints.items()
        return {name: "" if state.up else state.detail or "down" for name, state in states}

    async def drain(self, grace_s: float) -> None:
        """Say not ready, finish what runs (at most `grace_s`), close everything."""
        self._grace_until = time.monotonic() + grace_s
        await self._director.drain(grace_s)
        await self._opened.aclose()

    async def endpoints_view(self) -> list[dict[str, Any]]:
        return await views.endpoints(
            self._state.snapshot, self._endpoints, self._discovery.of, time.monotonic()
        )

    async def models_view(self) -> list[dict[str, Any]]:
        return views.models(self._state.snapshot, {model.name for model in self._settings.config.models})

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

    async def gauges(self, rows: Sequence[ToldGauge]) -> None:
        """Metrics that control alone knows, in place of what it told before."""
        self._telemetry.metrics.told(rows)

    async def metrics(self) -> Families:
        """What a scrape of this replica alone would have, made off the loop that serves requests."""
        return await asyncio.to_thread(lambda: list(self._telemetry.metrics.collect()))

    async def counts(self) -> Counts:
        """What was served here."""
        return summed([self._director.counts])

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> None:
        """Change this replica's settings. Raises OipError."""
        settings = self._telemetry.settings
        _ = settings.trace(changes) if kind == "trace" else settings.log(changes)

    async def settings(self) -> State:
        return self._telemetry.settings.state

    async def adopt(self, state: State) -> None:
        """Take over the settings of replicas that have served for longer."""
        self._telemetry.settings.adopt(state)

    async def look(self, endpoints: Collection[str]) -> None:
        """Look at endpoints now; returns when what there is to know is known."""
        await asyncio.gather(
            *(self._monitors[name].look_anew() for name in endpoints if name in self._monitors)
        )

    async def follow(self, release: Release) -> dict[str, str]:
        """Bring a release to the endpoints that follow its model; by endpoint "" or why not."""
        if self._following is None:
            raise OipError(Reason.UNAVAILABLE, "released files cannot be had here")
        return await self._following.follow(release)

    async def teach(self, model: str, teacher: str, request: bytes, allowed: str) -> Sequence[int]:
        """A teacher's labels for a sample. Raises OipError."""
        return await teach(self._settings.config, self._endpoints, model, teacher, request, allowed)

    async def measure(self, endpoint: str, model: str, version: str) -> dict[str, Any]:
        """Begin to measure a variant, as its endpoint names it. Raises OipError."""
        key = VariantKey(endpoint, model, version)
        if key not in self._state.snapshot.variants:
            raise OipError(
                Reason.NOT_FOUND,
                f"the running configuration has no variant {shown(model)} on an endpoint {shown(endpoint)}",
            )
        return self._measurements.begin(key)

    async def measuring(self) -> bool:
        """Whether a measurement runs."""
        return self._measurements.running

    async def measurement(self, number: str) -> dict[str, Any]:
        return self._measurements.view(number)

    def _move(self, config: Config) -> None:
        """Go on with other models; places and all else are as they were."""
        now = time.monotonic()
        new = set(self._state.move(config, now))
        fresh = [p for p in self._stored if VariantKey(p.endpoint, p.model, p.version) in new]
        self._state.profiles(fresh, now, time.time())

    def _heard(self, name: str, health: Health) -> None:
        discovered = self._discovery.of(name)
        if health.up and discovered is not None:
            health = replace(health, detail=discovered.remark)
        self._state.heard(name, health)
        self._telemetry.metrics.endpoint_up(name, health.up)

    def _heard_group(self, name: str, group: Group) -> None:
        self._state.fleet(name, group)
        self._telemetry.metrics.devices(self._state.snapshot.groups.values())

    def _lost(self, name: str) -> None:
        """An attempt found the endpoint, or one device of it, gone: say so, and look whether that stands."""
        self._telemetry.metrics.endpoint_up(name, self._state.snapshot.endpoints[name].up)
        self._monitors[name].look_now()

    def _read_profiles(self) -> None:
        """Take in stored measurements if they changed. A file that cannot be read keeps the figures
        there are and is told once: a replica that is replaced must serve all the same."""
        seen = self._profiles.change_token()
        if seen == self._profiles_seen:
            return
        self._profiles_seen = seen
        try:
            self._stored = self._profiles.load()
            self._state.profiles(self._stored, time.monotonic(), time.time())
        except (OSError, ValueError) as error:
            logger.error("stored measurements are not used: %s", error)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._read_profiles()
            self._state.tick(time.monotonic())
