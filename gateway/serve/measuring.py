"""Measurements that a data plane makes of its own endpoints, one at a time."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from gateway.core.config import Config, EndpointConfig
from gateway.core.decision import VariantKey
from gateway.core.fleet import Group
from gateway.core.ports import Endpoint
from gateway.jobs.measure import Effort, Measurable, MeasureError, measure_with_made_up_data
from gateway.jobs.spread import Spread
from gateway.store.profiles import ProfileError, ProfileStore
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

LIMIT_S = 180.0
logger = logging.getLogger(__name__)
KEPT = 32
"""So many measurements can be asked about afterwards."""
ANOTHER = "another measurement is running: try again when it has ended"
EFFORTS = {"pool": Effort(step_s=5.0, timeout_s=30.0)}
"""By kind. A pool gets time to start replicas, from zero and then as the load grows."""


class Measurements:
    """`group` tells the devices of an endpoint as they are. What is measured goes to `profiles`."""

    def __init__(
        self,
        config: Config,
        endpoints: Mapping[str, Endpoint],
        group: Callable[[str], Group],
        profiles: ProfileStore,
    ) -> None:
        self._config = config
        self._endpoints = endpoints
        self._group = group
        self._profiles = profiles
        self._declared = {endpoint.name: endpoint for endpoint in config.endpoints}
        self._views: dict[str, dict[str, Any]] = {}
        self._running: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._running is not None and not self._running.done()

    def begin(self, key: VariantKey) -> dict[str, Any]:
        """Returns at once. Raises OipError while another one runs."""
        if self.running:
            raise OipError(Reason.OVERLOADED, ANOTHER)
        view: dict[str, Any] = {
            "id": secrets.token_hex(4),
            **key._asdict(),
            "state": "running",
            "share": 0.0,
            "profile": None,
            "error": None,
        }
        self._views[view["id"]] = view
        while len(self._views) > KEPT:
            del self._views[next(iter(self._views))]
        self._running = asyncio.create_task(self._run(key, view), name=f"measure {key.endpoint}")
        return dict(view)

    def view(self, number: str) -> dict[str, Any]:
        """Raises OipError for one that nobody knows any more."""
        if number not in self._views:
            raise OipError(Reason.NOT_FOUND, f"no measurement {shown(number)}: unknown, or too old")
        return dict(self._views[number])

    async def close(self) -> None:
        """End what runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, key: VariantKey, view: dict[str, Any]) -> None:
        declared = self._declared[key.endpoint]

        def progress(share: float) -> None:
            view["share"] = share

        try:
            async with asyncio.timeout(LIMIT_S):
                profile = await measure_with_made_up_data(
                    self._place(declared, key),
                    declared,
                    key,
                    gateway=self._config.gateway.name,
                    effort=EFFORTS.get(declared.kind, Effort()),
                    progress=progress,
                )
            await asyncio.to_thread(self._profiles.save, [profile])
            view |= {"state": "done", "share": 1.0, "profile": asdict(profile)}
        except TimeoutError:
            view |= {"state": "failed", "error": f"{key.endpoint} took more than {LIMIT_S:.0f} s"}
        except OSError as error:
            view |= {"state": "failed", "error": f"the profile was not stored: {error.strerror}"}
        except ProfileError:
            view |= {
                "state": "failed",
                "error": "the profiles that are stored cannot be read; see `tidegate up`",
            }
        except (MeasureError, OipError, ValueError) as error:
            view |= {"state": "failed", "error": str(error)}
        except asyncio.CancelledError:
            view |= {"state": "failed", "error": "the gateway is stopping"}
            raise
        except Exception as error:
            logger.exception("a measurement failed")
            text = f"the measurement failed ({type(error).__name__}); see the gateway's log"
            view |= {"state": "failed", "error": text}

    def _place(self, declared: EndpointConfig, key: VariantKey) -> Measurable:
        endpoint = self._endpoints[key.endpoint]
        if declared.place is not None:
            return endpoint
        return Spread(endpoint, key.endpoint, (key.model, key.version), lambda: self._group(key.endpoint))
