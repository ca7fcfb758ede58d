"""The hub: a listener for devices and one for the gateway's own processes."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from edgewire.v1 import edge_pb2_grpc, inside_pb2_grpc
from edgewire.wire_places import to_wire
from gateway.core.config import Config
from gateway.edgehub.book import Book
from gateway.edgehub.deliveries import Deliveries
from gateway.edgehub.fleet import Fleet
from gateway.edgehub.inside import Alive, InsideCalls
from gateway.edgehub.orders import OrderBook
from gateway.edgehub.ports import Roll
from gateway.edgehub.public import DeviceCalls
from gateway.edgehub.session import Terms
from gateway.edgehub.streams import Streams
from gateway.store.blobs import BlobStore
from oip.errors import OipError

TICK_S = 0.25
"""How often silence is looked for."""
ROLL_AGAIN_S = 1.0
"""How long after the registry could not be asked it is asked again."""
MAX_DEVICE_MESSAGE = 2**20
"""Largest single message of a device: a piece, or a heartbeat with its models."""
MAX_SOCKET_PATH = 100
WINDOW_BYTES = 256 * 1024

PUBLIC_OPTIONS = (
    # A second hub at one address would get some of the devices, and nobody would know which.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_DEVICE_MESSAGE),
    # What may be under way unread. A window that grows with the link's delay lets a slow link fill up with
    # one large answer, and heartbeats then wait behind it.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # A stopped device keeps its connection. Silence ends its session; this ends the connection too.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
INSIDE_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class HubServer:
    """`listen` is where devices connect (port 0 picks a free one), `inside` the path of the socket for
    the gateway's own processes, which only this user can open. Raises ValueError for an address beyond
    loopback: without mutual TLS anybody could read the link.

    `blobs` holds what devices fetch. `heartbeat_s` is how often they are to report.
    """

    def __init__(
        self,
        config: Config,
        listen: tuple[str, int],
        inside: Path,
        roll: Roll,
        blobs: BlobStore,
        heartbeat_s: float = 2.0,
    ) -> None:
        host, self._port = listen
        self._host = "127.0.0.1" if host == "localhost" else host
        _refuse_beyond_loopback(self._host)
        if len(os.fsencode(inside)) > MAX_SOCKET_PATH:
            raise ValueError(
                f"the path of the hub's inner socket is longer than {MAX_SOCKET_PATH} bytes: use a shorter folder"
            )
        self._inside_path = inside
        clock = time.monotonic
        most = round(config.gateway.limits.max_body_mb * 2**20)
        place = to_wire(config.gateway.location.place)
        terms = Terms(config.gateway.name, heartbeat_s, most, max_held_bytes=4 * most, place=place)
        self._streams = Streams()
        self._book = Book(roll, self._roll_differs, clock)
        self._fleet = Fleet(self._book.get, lambda: list(self._book.devices), clock)
        self._orders = OrderBook(config, roll, blobs)
        self._devices = DeviceCalls(
            terms,
            self._book,
            self._streams,
            self._fleet,
            self._orders,
            blobs,
            Deliveries(roll, clock),
            clock,
        )
        self._inside = InsideCalls(self._book, self._streams, self._fleet, most, clock)
        self._public_server: grpc.aio.Server | None = None
        self._inside_server: grpc.aio.Server | None = None
        self._roll_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> tuple[str, int]:
        """Where devices connect, once it has started."""
        return self._host, self._port

    @property
    def target(self) -> str:
        """gRPC target of the inner listener."""
        return f"unix:{self._inside_path}"

    async def start(self) -> None:
        """Listen. Raises OSError for an address that cannot be had. That control cannot be asked yet stops
        nothing."""
        await self._load()
        self._public_server = grpc.aio.server(options=PUBLIC_OPTIONS)
        edge_pb2_grpc.add_EdgeHubServicer_to_server(self._devices, self._public_server)
        self._inside_server = grpc.aio.server(options=INSIDE_OPTIONS)
        inside_pb2_grpc.add_HubInsideServicer_to_server(self._inside, self._inside_server)
        health_pb2_grpc.add_HealthServicer_to_server(Alive(), self._inside_server)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self._bind_inside(self._inside_server)
            self._port = self._public_server.add_insecure_port(f"{shown}:{self._port}")
        except RuntimeError:
            raise OSError(f"edge: cannot listen on {shown}:{self._port}: the address is not free") from None
        await self._inside_server.start()
        await self._public_server.start()
        self._tasks = [
            asyncio.create_task(self._tick(), name="hub tick"),
            asyncio.create_task(self._keep_roll(), name="hub roll"),
        ]

    async def close(self, grace_s: float) -> None:
        """Finish what runs, for `grace_s` at most, then end every stream and both listeners."""
        await self._inside.drain(grace_s)
        self._devices.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in (self._public_server, self._inside_server):
            if server is not None:
                await server.stop(1.0 if server is self._public_server else 0.0)
        self._inside_path.unlink(missing_ok=True)

    async def roll_changed(self) -> None:
        """The registry or the orders have changed: ask for them, end the streams of those who are revoked, and
        tell the others what they are to do now. When control cannot be asked, that is tried again until
        it can."""
        await self._load()

    async def _load(self) -> None:
        for work in (self._book.load, self._orders.load):
            try:
                await work()
            except OipError:
                self._roll_wanted.set()
        for stream in self._streams:
            enrolled = self._book.get(stream.device)
            if enrolled is not None:
                self._devices.direct(stream, enrolled)

    async def _keep_roll(self) -> None:
        while True:
            await self._roll_wanted.wait()
            await asyncio.sleep(ROLL_AGAIN_S)
            self._roll_wanted.clear()
            await self._load()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for stream in self._streams:
                stream.tick()

    def _roll_differs(self, names: frozenset[str]) -> None:
        for name in names:
            enrolled, stream = self._book.get(name), self._streams.get(name)
            if enrolled is None:
                if stream is not None:
                    stream.end("PERMISSION_DENIED", f"Device {name} is revoked: ask the gateway's operator.")
                self._fleet.forget(name)
                continue
            if stream is None:
                pass
            elif stream.credential_sha256 != enrolled.credential_sha256:
                stream.end("PERMISSION_DENIED", f"Device {name} was enrolled anew with another credential.")
            else:
                self._devices.direct(stream, enrolled)
            self._fleet.changed(name, urgent=True)

    def _bind_inside(self, server: grpc.aio.Server) -> None:
        """The socket is this user's alone from the moment it is there."""
        self._inside_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._inside_path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server.add_insecure_port(self.target)
        finally:
            os.umask(before)


def _refuse_beyond_loopback(host: str) -> None:
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"edge: {host} is not a loopback address: devices are served on loopback only, because this "
            "version has no mutual TLS"
        )
