"""`tidegate up`: run the gateway until a signal, then drain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.common import fail, load

MAX_DRAIN_S = 86_400


class Lane(StrEnum):
    AUTO = "auto"
    PORTABLE = "portable"


def up(
    file: Annotated[Path, typer.Option("-f", "--file", help="the configuration file")] = Path(
        "tidegate.yaml"
    ),
    lane: Annotated[Lane, typer.Option(help="this version has the portable lane only")] = Lane.AUTO,
    http: Annotated[str, typer.Option(help="OIP over HTTP, and the operator API")] = "127.0.0.1:8080",
    grpc: Annotated[str, typer.Option(help="OIP over gRPC")] = "127.0.0.1:8081",
    edge: Annotated[
        str, typer.Option(help="where edge devices connect, if the file has a group of them")
    ] = "127.0.0.1:8082",
    metrics: Annotated[str, typer.Option(help="Prometheus metrics")] = "127.0.0.1:9464",
    state_dir: Annotated[
        Path, typer.Option(help="stored measurements, enrolled devices, releases and keys")
    ] = Path(".tidegate"),
    drain_s: Annotated[float, typer.Option(help="longest wait for running requests when stopping")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per event")] = False,
) -> None:
    """Start the gateway; prints `ready` once it serves."""
    config, revision = load(file, warn=True)
    from gateway.serve.settings import Address, Listen, ReplicaSettings
    from gateway.store.blobs import BlobError, BlobStore
    from gateway.store.database import StoreError, alone, migrate
    from gateway.store.profiles import ProfileStore

    try:
        devices_at = Address.parse(edge)
        listen = Listen(Address.parse(http), Address.parse(grpc), Address.parse(metrics))
    except ValueError as error:
        fail(str(error), 2)
    if not devices_at.is_loopback:
        fail(
            f"--edge {edge}: this version listens for devices on loopback only, because it has no mutual TLS yet",
            2,
        )
    if any(endpoint.kind == "edge" for endpoint in config.endpoints):
        listen = replace(listen, edge=devices_at)
    if not 0 <= drain_s <= MAX_DRAIN_S:
        fail(f"--drain-s takes 0 to {MAX_DRAIN_S} seconds", 2)
    try:
        ProfileStore(state_dir).load()
        migrate(state_dir)
        BlobStore(config.artifacts, state_dir)
    except (OSError, ValueError, StoreError, BlobError) as error:
        fail(str(error), 2)
    asked = threading.Event()

    from gateway.serve.environment import prepare

    prepare()
    from gateway.serve.app import StartError, StopError, running

    if not as_json:
        print("starting on Ray Serve, which takes some ten seconds", file=sys.stderr, flush=True)
    settings = ReplicaSettings(config, revision, listen, state_dir.absolute(), drain_s)
    try:
        _heed_signals(asked)
        # Without devices the directory holds measurements alone, which several gateways may share.
        turn = alone(state_dir) if listen.edge is not None else contextlib.nullcontext()
        with turn, running(settings, str(file), asked.is_set) as serving:
            if serving and not asked.is_set():
                _announce(serving, as_json)
                asked.wait()
            print("draining", file=sys.stderr, flush=True)
    except (StartError, StopError, StoreError) as error:
        fail(str(error), 1)


def _announce(serving: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "ready", **serving}), flush=True)
        return
    print(f"HTTP    http://{serving['http']}/v2 (operators: /api/v1)")
    print(f"gRPC    {serving['grpc']}")
    if serving["edge"] is not None:
        print(f"edge    {serving['edge']}")
    print(f"metrics http://{serving['metrics']}/metrics")
    for name, detail in serving["endpoints"].items():
        print(f"endpoint {name}: {detail or 'up'}")
    print("ready", flush=True)


def _heed_signals(asked: threading.Event) -> None:
    """The first SIGTERM or Ctrl-C asks for a drain, the second ends the process at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(130) if asked.is_set() else asked.set())
