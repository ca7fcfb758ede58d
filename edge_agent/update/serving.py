"""What serves: a model in its worker, with what is said of it to whoever asks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from edge_agent.runtime import RuntimeSettings, ServedModel
from edge_agent.runtime.launch import Artifact
from edge_agent.update.disk import Disk
from edge_agent.update.plan import Phase, Plan, Target
from edgewire.v1 import edge_pb2
from oip import codec
from oip.names import shown

PLATFORM = "tflite"
_STATES = {
    Phase.RESTORING: edge_pb2.ModelState.TRYING,
    Phase.VERIFYING: edge_pb2.ModelState.FETCHING,
    Phase.FETCHING: edge_pb2.ModelState.FETCHING,
    Phase.TRYING: edge_pb2.ModelState.TRYING,
    Phase.SETTLED: edge_pb2.ModelState.ACTIVE,
    Phase.FAILED: edge_pb2.ModelState.FAILED,
}


@dataclass(eq=False, slots=True)
class Serving:
    """`metadata` and `config` are serialized answers. `probation` runs until the model is proven."""

    target: Target
    served: ServedModel
    metadata: bytes
    config: bytes
    probation: asyncio.Task[None] | None = None


async def serving(target: Target, disk: Disk, settings: RuntimeSettings) -> Serving:
    """Load and try a target that lies on the disk. Raises TrialFailed."""
    served = await ServedModel.start(artifact_of(target, disk), settings)
    signature = served.signature
    delay = round(target.batch_delay_ms * 1000) if signature.max_batch else None
    return Serving(
        target,
        served,
        codec.metadata_of(target.model, target.version, PLATFORM, signature),
        codec.config_of(target.model, PLATFORM, signature, delay),
    )


def artifact_of(target: Target, disk: Disk) -> Artifact:
    return Artifact(
        target.model,
        target.version,
        disk.blob(target.digest),
        disk.blob(target.golden_digest) if target.golden_digest else None,
        target.batch_max_size,
        target.batch_delay_ms / 1000,
    )


def state_of(name: str, plan: Plan, entry: Serving | None) -> edge_pb2.ModelState:
    """What became of a desired model, for heartbeats."""
    found = edge_pb2.ModelState(
        model=name,
        version=plan.desired.version,
        digest=plan.desired.digest,
        state=_STATES[plan.phase],
        reason=plan.reason,
    )
    if plan.previous is not None:
        found.previous_digest = plan.previous.target.digest
        found.previous_version = plan.previous.target.version
    if entry is None:
        return found
    if entry.served.trouble:
        if plan.phase is Phase.SETTLED:
            found.state = edge_pb2.ModelState.FAILED
            found.reason = f"Model {shown(name)} does not answer: {entry.served.trouble}."
        return found
    loaded = entry.served.loaded
    found.active_digest, found.active_version = entry.target.digest, entry.target.version
    found.delegate, found.delegated_nodes, found.nodes = loaded.delegate, loaded.taken, loaded.nodes
    found.degraded = entry.served.degraded
    found.metadata, found.config = entry.metadata, entry.config
    return found
