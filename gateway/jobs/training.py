"""Runs an update's trainer as a Ray task."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.training import TrainResult
from gateway.core.training_run import RunEvent, TrainSpec


async def train(spec: TrainSpec, heard: Callable[[RunEvent], None]) -> TrainResult:
    """Run the trainer until it gives a result, trying again as often as configured. Raises TrainFailed."""
    raise NotImplementedError
