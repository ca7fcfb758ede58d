"""What is said of a pool that does not run."""

from __future__ import annotations

import pytest

from gateway.pool.status import PoolStatus, down_because, reason_in

TRACE = """The deployment failed to start 3 times in a row. See controller logs for details. Error:
ray::ServeReplica:tidegate-pool-p:Pool.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)
  File "/home/someone/gateway/pool/replica.py", line 90, in __init__
    raise PoolStartError("; ".join(f"{key[0]}: {why}" for key, why in failed))
gateway.pool.replica.PoolStartError: digits: onnxruntime cannot open it (InvalidProtobuf)
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", ""),
        (TRACE, "digits: onnxruntime cannot open it (InvalidProtobuf)"),
        (
            'A replica failed to start with exception. Retrying. Error:\n  File "/x.py"\nImportError: no module',
            "its replicas fail to start; Ray's log of the replica says why",
        ),
        (
            "Deployment 'Pool' has 1 replicas that have taken more than 30s to be scheduled.",
            "no node has the resources for a replica free",
        ),
        ("has taken more than 30s to initialize", "a replica takes long to start"),
        ("Upscaling from 1 to 2 replicas.", ""),
    ],
)
def test_serves_message_in_a_few_words_without_paths(message: str, reason: str):
    assert reason_in(message) == reason


UP = PoolStatus(deployed=True)


@pytest.mark.parametrize(
    ("status", "starting_s", "least", "why"),
    [
        (PoolStatus(deployed=False), 0, 0, "is not deployed on Ray Serve"),
        (UP, 0, 0, ""),
        (UP, 0, 1, "its first replica is starting"),
        (PoolStatus(True, starting=1), 5, 0, ""),
        (PoolStatus(True, starting=1), 30, 0, "no replica has started for 30 s: none is ready yet"),
        (PoolStatus(True, starting=1, reason="no room"), 30, 2, "no replica has started for 30 s: no room"),
        (PoolStatus(True, failed=True, reason="no CUDA"), 0, 0, "does not start: no CUDA; it is tried again"),
        (PoolStatus(True, running=1, failed=True, reason="no CUDA"), 60, 1, ""),
    ],
)
def test_a_pool_is_down_only_when_no_replica_can_be_expected(
    status: PoolStatus, starting_s: float, least: int, why: str
):
    assert down_because(status, starting_s, least) == why
