"""Reports as devices and gateways make them, and what control knows when it takes them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from edgewire.signals import CONFIDENCE, SIGNALS, bin_counts, default_edges, edges_crc
from edgewire.v1 import edge_pb2
from gateway.core.config import Config
from gateway.core.place import Place, Tier
from gateway.edgehub.groups import EdgeConfig
from gateway.store.database import FILE, migrate
from tests.support.fakes import config_of

SPOOL = "0123456789abcdef" * 2
OTHER_SPOOL = "fedcba9876543210" * 2
DEVICE = Place(Tier.DEVICE, None, "s1", "cam-1")
EDGES = {signal: default_edges(signal) for signal in SIGNALS}
ANYWHERE = "tier=device+site+regional+cloud"


class Releases:
    """Versions 1 and 2 of every model are released, with the default bins."""

    def __init__(self, versions: tuple[str, ...] = ("1", "2")) -> None:
        self.versions = versions

    def edges(self, model: str, version: str) -> Mapping[str, tuple[float, ...]] | None:
        return EDGES if version in self.versions else None


def watched(privacy: str = "public", **update: Any) -> Config:
    """`config_of` with a group of devices at s1 that run the model `digits` under that name, an update
    of it that collects samples for the site, and one of nothing else."""
    base = config_of()
    (model,) = (model.model_dump() for model in base.models)
    variants = [*model["variants"], {"endpoint": "cameras"}]
    wanted = {
        "model": "digits",
        "samples": {"collect": "hard", "max_per_day": 5, "labels": {"file": "labels.csv"}},
        "train": {"entrypoint": "m:run", "location": {"tier": "site", "site": "s1"}},
        **update,
    }
    return config_of(
        endpoints=[*base.endpoints, EdgeConfig(name="cameras", kind="edge")],
        models=[{**model, "privacy": privacy, "variants": variants}],
        updates=[wanted],
    )


def window(
    answered: int = 1, *, confidences: tuple[float, ...] = (), version: str = "1", **failed: int
) -> edge_pb2.Window:
    """Of the model `digits`: each answer took 10 us, and had one of the confidences."""
    made = edge_pb2.Window(model="digits", version=version, answered=answered, failed=failed)
    if answered:
        made.latency[0] = answered
    if confidences:
        edges = EDGES[CONFIDENCE]
        counts = bin_counts(np.asarray(confidences), edges)
        made.signals.add(name=CONFIDENCE, bins=edges_crc(edges), counts=counts)
    return made


def inference(value: float = 0.0, rows: int = 1) -> bytes:
    """A request of `rows` rows of 4 FP32, all of them the value."""
    message = service_pb2.ModelInferRequest(model_name="digits")
    message.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    message.raw_input_contents.append(np.full((rows, 4), value, "<f4").tobytes())
    return message.SerializeToString()


def sample(value: float = 0.0, rows: int = 1, allowed: str = ANYWHERE, **other: Any) -> edge_pb2.Sample:
    given = {"model": "digits", "version": "1", "confidence": 0.4, **other}
    return edge_pb2.Sample(request=inference(value, rows), allowed=allowed, **given)


def record(
    number: int,
    kind: edge_pb2.Window | edge_pb2.Sample | edge_pb2.Gap | edge_pb2.Telemetry,
    age_s: float | None = 0.0,
) -> edge_pb2.Record:
    name = type(kind).__name__.lower()
    made = edge_pb2.Record(number=number, **{name: kind})
    if age_s is not None:
        made.age_ms = round(age_s * 1000)
    return made


def report(*records: edge_pb2.Record, spool: str = SPOOL) -> edge_pb2.DeliverRequest:
    return edge_pb2.DeliverRequest(spool=spool, records=records)


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        migrate(Path(folder))
        return (Path(folder) / FILE).read_bytes()


def fresh(folder: Path) -> Path:
    """The folder, with a database as `migrate` makes it; what takes long is done once."""
    (folder / FILE).write_bytes(_migrated())
    return folder
