"""`grpc.health.v1.Health`, answered from what the gateway's service says now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

OIP_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"
WATCH_INTERVAL_S = 0.25

_Status = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """`ready()` decides for the whole server ("") and for the OIP service alike."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Not serving from now on; watchers hear so and their streams end."""
        self._leaving.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"unknown service: the names are {OIP_SERVICE} and the empty one"
            )
        return _Status(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            leaving = self._leaving.is_set()
            status = self._status(request.service)
            if status != told:
                yield _Status(status=status)
                told = status
            if leaving:
                return
            try:
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._leaving.wait()
            except TimeoutError:
                continue

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        if service not in ("", OIP_SERVICE):
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._ready() and not self._leaving.is_set() else _Status.NOT_SERVING
