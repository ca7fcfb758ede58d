"""The models on offer, kept to what the endpoints have that are to be discovered.

Each look at such an endpoint asks for the index of its models too. When that changes anything, the
configuration in force is made anew and handed on whole. An endpoint that is down, or does not tell for
once, keeps what it had: its models are known then, and cannot be answered. One without an index offers
nothing, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.core.config import Config
from gateway.core.config.discovered import Found, Offered, found_of, offer
from gateway.core.errors import AttemptError
from gateway.core.ports import Endpoint, Indexed, ModelHealth
from oip.reasons import Reason

NO_INDEX = "its server keeps no index of its models, so none of them is offered by discovery"
TOO_LARGE = "its index of models is too large to be read"
NOT_READ = "its index of models could not be read; what it had before is still offered"

MANY = 5000
"""More names than this are looked through beside the loop."""


class Discovery:
    """`declared` is the file's configuration, `endpoints` are the started ones by name, and `move` takes
    the configuration in force whenever it changes. Lives on one loop."""

    def __init__(
        self, declared: Config, endpoints: Mapping[str, Endpoint], move: Callable[[Config], None]
    ) -> None:
        self._declared = declared
        self._endpoints = endpoints
        self._move = move
        self._names: dict[str, frozenset[str]] = {}
        self._found: dict[str, Found] = {}
        self._offer = offer(declared, {})
        self._silent: dict[str, str] = {}
        """Why an endpoint's index is not known now."""

    async def look(self, name: str, timeout_s: float) -> tuple[ModelHealth, ...]:
        """Ask an endpoint which models it has; those on offer there, which are ready."""
        endpoint = self._endpoints[name]
        assert isinstance(endpoint, Indexed)
        try:
            names = await endpoint.ready_models(timeout_s)
            self._silent.pop(name, None)
        except AttemptError as error:
            if error.reason is not Reason.NOT_SERVED:
                self._silent[name] = TOO_LARGE if error.reason is Reason.TOO_LARGE else NOT_READ
                return ()
            self._silent[name] = NO_INDEX
            names = frozenset[str]()
        if names != self._names.get(name, frozenset[str]()):
            found = await asyncio.to_thread(found_of, names) if len(names) > MANY else found_of(names)
            self._names[name], self._found[name] = names, found
            self._offer = offer(self._declared, self._found)
            self._move(self._offer.config)
        return tuple(ModelHealth(model, "", True) for model in self._offer.endpoints[name].names)

    def of(self, endpoint: str) -> Offered | None:
        """What was discovered at an endpoint; None for one that is not to be. The remark also says why its
        index is not known."""
        offered = self._offer.endpoints.get(endpoint)
        silent = self._silent.get(endpoint)
        return offered if offered is None or silent is None else replace(offered, remark=silent)
