"""The agent's process: the device's models, its own server, its link and what is counted, from start to end."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from edge_agent.address import Address
from edge_agent.analytics import Gatherer
from edge_agent.config import AgentConfig
from edge_agent.link.client import CallEnded
from edge_agent.link.runner import Link, LinkSettings
from edge_agent.local.grpc_server import GrpcServer
from edge_agent.local.handlers import Handlers
from edge_agent.local.http_server import HttpServer
from edge_agent.ports import Models, Observer
from edge_agent.spool import Spool
from edge_agent.state import DeviceState
from edge_agent.telemetry import Readings
from oip.held import BodyBudget

BUDGET_BODIES = 4
"""How many bodies of the largest size the agent holds at once; of smaller ones accordingly more."""
GRACE_S = 20.0
"""How long what runs may take when the agent is told to stop."""
SPOOL = "spool.db"
UNENROLLED = "unenrolled"
"""The device's name in answer headers while it has none."""

MakeModels = Callable[[Path, AgentConfig, Observer], Models]


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the command line says. `token` "": none."""

    hubs: tuple[str, ...]
    http: Address
    grpc: Address
    config: AgentConfig
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Ready:
    """The agent serves. `device` and `site` are None before enrolment; addresses are as bound."""

    device: str | None
    site: str | None
    http: str
    grpc: str
    pid: int


async def serve(
    settings: AgentSettings, state: DeviceState, make_models: MakeModels, announce: Callable[[Ready], None]
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs and close. A second signal ends the process.

    Raises OSError for an address that cannot be listened on, and EnrolmentRefused when the hub refuses
    the token at the first attempt.
    """
    stopping = asyncio.Event()
    _heed_signals(stopping)
    limit = settings.config.limits.max_body_bytes
    budget = BodyBudget(BUDGET_BODIES * limit, "device")
    readings = Readings()
    spool = Spool(state.folder / SPOOL, settings.config.limits.spool_bytes)
    gatherer = Gatherer(spool, readings.latest)
    models = make_models(state.folder, settings.config, gatherer)
    handlers = Handlers(models, lambda: _name(state, settings.config), budget, limit)
    http = HttpServer(handlers, *settings.http, max_body_bytes=limit)
    grpc = GrpcServer(handlers, *settings.grpc, max_message_bytes=limit)
    link = Link(
        LinkSettings(
            settings.hubs, settings.token, settings.config.device or "", limit, facts_of(settings.config)
        ),
        state,
        models,
        budget,
        readings.latest,
        spool,
    )

    async def start() -> None:
        await gatherer.start()
        at_http = Address(settings.http.host, await http.start())
        at_grpc = Address(settings.grpc.host, await grpc.start())
        await models.start()
        with suppress(CallEnded):  # The link tries again, and says so.
            await link.enrol()
        who = state.enrolment
        device, site = (who.device, who.site) if who else (None, None)
        announce(Ready(device, site, str(at_http), str(at_grpc), os.getpid()))

    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stopping.wait())]
    try:
        starting = asyncio.create_task(start())
        tasks.append(starting)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            tasks.append(asyncio.create_task(link.run()))
            await stopping.wait()
    finally:
        handlers.drain()
        await asyncio.gather(http.close(GRACE_S), grpc.close(GRACE_S), link.drain(GRACE_S))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await models.close()
        await gatherer.close()


def _name(state: DeviceState, config: AgentConfig) -> str:
    if state.enrolment is not None:
        return state.enrolment.device
    return config.device or UNENROLLED


def _heed_signals(stopping: asyncio.Event) -> None:
    def stop() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def facts_of(config: AgentConfig) -> dict[str, str]:
    """What people and compatibility checks want to know of the device; nothing that identifies it. Of
    delegates only whether one is the operator's own library, "external": it may bring operators."""
    kinds = dict.fromkeys(one if isinstance(one, str) else "external" for one in config.delegates)
    facts = {
        "arch": platform.machine(),
        "os": platform.system().lower(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count() or 1),
        "memory_mb": str(psutil.virtual_memory().total // 2**20),
        "model_memory_mb": str(config.limits.memory_mb),
        "delegates": ",".join(kinds),
    }
    with suppress(metadata.PackageNotFoundError):
        facts["runtime"] = f"tflite-runtime {metadata.version('tflite-runtime')}"
    return facts
