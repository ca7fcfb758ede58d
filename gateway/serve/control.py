"""The control deployment: configuration, the registry of devices, the operator API, and what control does
of its own accord."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping
from typing import Any

import httpx

import gateway
from gateway.admin.app import operator_app
from gateway.admin.plane import PREFIX, MeasureQuery, ReleaseQuery, RolloutQuery, RouteQuery, TokenQuery
from gateway.control.signing import SigningError
from gateway.core.place import Place
from gateway.core.release import Release, Stage
from gateway.pipeline.siblings import Kind
from gateway.pool.loopback import bind_replica_to_loopback
from gateway.registry.registry import Registry
from gateway.serve.crossing import answered, ask
from gateway.serve.devices import Devices
from gateway.serve.fleet_watch import FleetWatch
from gateway.serve.homes_desk import HomesDesk
from gateway.serve.hub_view import HubView
from gateway.serve.own_loop import OwnLoop
from gateway.serve.planes import Planes
from gateway.serve.scrape_listener import ScrapeListener
from gateway.serve.settings import ReplicaSettings
from gateway.serve.upkeep import Upkeep
from gateway.store.artifacts import ArtifactError
from gateway.store.blobs import BlobError
from gateway.store.database import migrate, open_database
from oip.errors import OipError, error_body
from oip.reasons import STATUS, Reason

logger = logging.getLogger(__name__)

EDGE_HUB = "EdgeHub"
UPLOAD = f"{PREFIX}/artifacts"
UNREADABLE = (ArtifactError, BlobError, SigningError, OSError)
"""What is raised where files, store or keys cannot be read now."""
REREAD_S = 10.0
"""How long the hub may take to read its orders anew; it goes on reading after that."""


class Control:
    """Answers operators and the hub, and alone writes the database. What only a data plane replica or the
    hub knows it asks them for. It listens for scrapes of all replicas, and for what they ask of sequences."""

    def __init__(self, settings: ReplicaSettings, source: str) -> None:
        bind_replica_to_loopback()
        config, state_dir, inside = settings.config, settings.state_dir, settings.inside
        self._config = config
        self._revision = settings.revision
        self._source = source
        self._metrics_at = str(settings.listen.metrics)
        migrate(state_dir)
        engine = open_database(state_dir)
        target = None if inside is None else f"unix:{inside}"
        hub = None if target is None else HubView(target, _hub_reread)
        self._devices = Devices(Registry(engine), hub)
        self._planes = Planes()
        tell_hub = _nobody if hub is None else hub.reread
        self._upkeep = Upkeep(config, state_dir, engine, FleetWatch(target), tell_hub, self._planes)
        self._starting: asyncio.Task[None] | None = None
        self._app = operator_app(self, gateway.__version__)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app, raise_app_exceptions=False), base_url="http://control"
        )
        self._own = OwnLoop("control")
        self._scrapes = ScrapeListener(self._planes.scrape, settings.listen.metrics)
        self._homes = None if settings.homes is None else HomesDesk(settings.homes)
        self._own.start(self._listen())

    async def _listen(self) -> None:
        await self._scrapes.start()
        if self._homes is not None:
            await self._homes.start()

    async def describe(self) -> dict[str, Any]:
        """Where metrics are and the process id; or `failure`: why nothing can be kept up."""
        if self._own.failure:
            return {"failure": self._own.failure}
        try:
            await self._started()
        except (*UNREADABLE, OipError) as error:
            return {"failure": str(error)}
        return {"metrics": self._metrics_at, "pid": os.getpid()}

    async def check_health(self) -> None:
        """Asked by Serve: it sees to it that a control that was replaced goes on, whoever else calls. One that
        cannot read its store or its disk now is not replaced for that: another one could not either."""
        self._own.check()
        self._begun()

    async def _started(self) -> None:
        await asyncio.shield(self._begun())

    def _begun(self) -> asyncio.Task[None]:
        """Begin with what is on disk, once; what cannot be read is tried again by the next who asks."""
        if self._starting is None or (self._starting.done() and _fault(self._starting) is not None):
            self._starting = asyncio.create_task(self._upkeep.start(), name="begin upkeep")
            self._starting.add_done_callback(_tell_fault)
        return self._starting

    async def operator(
        self, method: str, target: str, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """One call of the operator API, as the data plane passed it on."""
        # The API takes JSON, whatever a caller's tool calls it; an artifact is whatever it is.
        raw = method == "PUT" and target == UPLOAD
        headers = {"content-type": "application/octet-stream" if raw else "application/json"}
        try:
            request = self._client.build_request(method, target, content=body, headers=headers)
        except httpx.InvalidURL:
            text = error_body("the request's target is too long or not a URL")
            return STATUS[Reason.MALFORMED].http, [("content-type", "application/json")], text
        response = await self._client.send(request)
        kept = [(k, v) for k, v in response.headers.items() if k in ("content-type", "allow")]
        return response.status_code, kept, response.content

    async def enrol(self, token: str, device: str, credential_sha256: bytes) -> dict[str, Any]:
        """For the hub: a device redeems its token."""
        return await answered(self._devices.enrol(token, device, credential_sha256))

    async def enrolled(self) -> dict[str, Any]:
        """For the hub: every device, revoked ones too."""
        return await answered(self._devices.enrolled())

    async def orders(self) -> dict[str, Any]:
        """For the hub: what devices are to do."""

        async def work() -> Any:
            await self._known()
            return await self._upkeep.orders()

        return await answered(work())

    async def deliver(self, device: str, site: str, request: bytes) -> dict[str, Any]:
        """For the hub: records of a device, counted when this returns."""

        async def work() -> bytes:
            await self._known()
            return await self._upkeep.deliver(device, site, request)

        return await answered(work())

    async def observed(self, replica: str, place: Place, request: bytes) -> dict[str, Any]:
        """For a data plane replica: records of what answered at a place."""

        async def work() -> bytes:
            await self._known()
            return await self._upkeep.observed(replica, place, request)

        return await answered(work())

    async def edges(self, model: str, version: str) -> dict[str, Any]:
        """For a data plane replica: the bins of a version's signals."""

        async def work() -> Any:
            await self._known()
            return self._upkeep.known.edges(model, version)

        return await answered(work())

    async def standing_releases(self) -> dict[str, Any]:
        """For a data plane replica: what its endpoints are to serve, by model."""

        async def work() -> Mapping[str, Release]:
            await self._known()
            return self._upkeep.followers.wanted()

        return await answered(work())

    async def counts(self) -> dict[str, Any]:
        """For a data plane replica: what all of them have served."""
        return await answered(self._planes.counts())

    async def change(self, kind: Kind, changes: Mapping[str, Any]) -> dict[str, Any]:
        """For a data plane replica: other settings for all of them."""
        return await answered(self._planes.change(kind, changes))

    async def settings(self) -> dict[str, Any]:
        """For a data plane replica that starts: the settings of the others."""
        return await answered(self._planes.settings())

    async def look(self, endpoints: Collection[str]) -> dict[str, Any]:
        """For a data plane replica: have all of them look at endpoints."""
        return await answered(self._planes.look(endpoints))

    async def _known(self) -> None:
        """Until control knows what is on disk. Raises OipError UNAVAILABLE."""
        try:
            await self._started()
        except UNREADABLE as error:
            raise OipError(Reason.UNAVAILABLE, str(error)) from None

    def config_view(self) -> dict[str, Any]:
        return {
            "revision": self._revision,
            "source": self._source,
            "gateway": self._config.gateway.name,
            "last_error": None,
            "differences": [difference.text for difference in self._upkeep.releases.differences()],
        }

    async def endpoints_view(self) -> list[dict[str, Any]]:
        return await self._planes.endpoints_view()

    async def models_view(self) -> list[dict[str, Any]]:
        await self._known()
        return self._upkeep.models.with_releases(await self._planes.models_view())

    async def upload_artifact(self, content: bytes) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.models.upload(content)

    async def push_release(self, model: str, query: ReleaseQuery) -> dict[str, Any]:
        await self._known()
        made = await self._upkeep.models.push(model, query)
        if made["stage"] == Stage.CANDIDATE.value:
            # It has its gate before it, and nobody is to have to ask for that.
            await self._upkeep.updates.judge_pushed(model, made["version"])
        return made

    async def compat_view(self, model: str | None, version: str | None) -> list[dict[str, Any]]:
        await self._known()
        return await self._upkeep.models.compat(model, version)

    async def route(self, query: RouteQuery) -> dict[str, Any]:
        return await self._planes.dry_run(query.model_dump())

    async def decision(self, decision_id: str) -> dict[str, Any] | None:
        return await self._planes.decision(decision_id)

    async def measure(self, query: MeasureQuery) -> dict[str, Any]:
        return await self._planes.measure(query.endpoint, query.model, query.version)

    async def measurement(self, number: str) -> dict[str, Any]:
        return await self._planes.measurement(number)

    async def devices_view(self) -> list[dict[str, Any]]:
        return await self._devices.view()

    async def device_view(self, name: str) -> dict[str, Any]:
        return await self._devices.view_of(name)

    async def issue_token(self, query: TokenQuery) -> dict[str, Any]:
        return await self._devices.issue(query)

    async def drain_device(self, name: str, drained: bool) -> dict[str, Any]:
        return await self._devices.drain(name, drained)

    async def revoke_device(self, name: str) -> dict[str, Any]:
        return await self._devices.revoke(name)

    async def updates_view(self) -> dict[str, Any]:
        await self._known()
        return self._upkeep.updates.views()

    async def update_view(self, id: str) -> dict[str, Any]:
        await self._known()
        return self._upkeep.updates.view(id)

    async def start_update(self, model: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.updates.trigger(model)

    async def cancel_update(self, id: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.updates.cancel(id)

    async def retry_update(self, id: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.updates.retry(id)

    async def samples_view(self, model: str) -> list[dict[str, Any]]:
        await self._known()
        return await self._upkeep.updates.samples(model)

    async def rollouts_view(self) -> list[dict[str, Any]]:
        await self._known()
        return self._upkeep.rollouts.views()

    async def rollout_view(self, id: str) -> dict[str, Any]:
        await self._known()
        return self._upkeep.rollouts.view(id)

    async def start_rollout(self, query: RolloutQuery) -> dict[str, Any]:
        await self._known()
        id = await self._upkeep.rollouts.start(query.model, query.version, force=query.force)
        return self._upkeep.rollouts.view(id)

    async def pause_rollout(self, id: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.rollouts.pause(id)

    async def resume_rollout(self, id: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.rollouts.resume(id)

    async def abort_rollout(self, id: str) -> dict[str, Any]:
        await self._known()
        return await self._upkeep.rollouts.abort(id)


def _fault(task: asyncio.Task[None]) -> BaseException | None:
    """Why a task that is done failed."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _tell_fault(task: asyncio.Task[None]) -> None:
    if (fault := _fault(task)) is not None:
        logger.error("control cannot go on with what is on disk: %s", fault or type(fault).__name__)


async def _hub_reread() -> None:
    try:
        async with asyncio.timeout(REREAD_S):
            await ask(EDGE_HUB, "the edge hub", "reread")
    except TimeoutError:
        raise OipError(Reason.UNAVAILABLE, "the edge hub does not answer; try again") from None


async def _nobody() -> None:
    """Without a hub there is nobody to tell."""
