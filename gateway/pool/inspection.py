"""What a pool's files take and give, found out before any replica runs.

It happens in a Ray task of its own without resources, so that a file that takes the runtime down takes
nothing else with it, and a pool at zero replicas can say what it serves.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from gateway.pool.niceness import step_aside
from gateway.pool.replica import open_variant, runtime_of
from gateway.pool.runtimes._interface import LoadError
from gateway.pool.settings import PoolSettings, VariantSettings
from oip.golden import GoldenFailed, check_golden, read_golden
from oip.signature import Signature

ON_CPU = {"CPU": 1.0}
"""Signatures are the same wherever a model runs, and the task has no accelerator."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A variant's file as it is now, or in `failure` why it cannot be served, as a few words."""

    digest: str = ""
    signature: Signature | None = None
    failure: str = ""


async def inspect(settings: PoolSettings, variant: VariantSettings, golden: bytes | None = None) -> Inspected:
    """Open the variant's file elsewhere and say what it is; a file that does not give its golden vectors is
    a failure. Raises nothing but cancellation, which ends the task."""
    ref: Any = _inspect.remote(settings, variant, golden)
    try:
        return await ref
    except RayError as error:
        return Inspected(failure=f"it could not be looked at ({type(error).__name__})")
    except BaseException:
        ray.cancel(ref, force=True)
        raise


@ray.remote(num_cpus=0, max_retries=0)
def _inspect(settings: PoolSettings, variant: VariantSettings, golden: bytes | None) -> Inspected:
    step_aside()
    try:
        digest, signature, session = open_variant(runtime_of(settings), variant, ON_CPU)
        if golden is not None:
            cases, tolerance = read_golden(io.BytesIO(golden))
            check_golden(cases, tolerance, signature.inputs, session.run)
    except (LoadError, GoldenFailed) as error:
        return Inspected(failure=str(error))
    except Exception as error:  # the runtime's own words of a failed run may quote its inputs
        return Inspected(failure=f"it fails on its golden vectors ({type(error).__name__})")
    return Inspected(digest, signature)
