"""The model repository as operators see it through the gateway: its models under their own names, loaded
and unloaded on every Triton server that has them.

What other endpoints serve follows the configuration and its releases; there is nothing to load there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.core.config import Config
from gateway.core.errors import AttemptError, Refusal
from gateway.core.ports import Endpoint, Loader
from gateway.core.request import Options
from gateway.decide import compiled, unknown_model
from gateway.decide.tables import Model
from gateway.pipeline.questions import Questions
from gateway.pipeline.state import ReplicaState
from oip.names import shown
from oip.reasons import Reason
from oip.repository import READY, UNAVAILABLE, IndexEntry

LOAD_S = 300.0
"""How long a server may take to load a model."""
UNLOAD_S = 10.0


class Repository:
    """`look` asks for a look at an endpoint, so that what changed there is soon known."""

    def __init__(
        self,
        config: Config,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        questions: Questions,
        look: Callable[[str], None],
    ) -> None:
        self._tables = compiled(config)
        self._state = state
        self._endpoints = endpoints
        self._questions = questions
        self._look = look

    async def index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        """Every model's versions; with `ready` those alone that can answer now."""
        found = await asyncio.gather(*(self._entries(m, options) for m in self._tables.models.values()))
        return [entry for entries in found for entry in entries if not ready or entry.state == READY]

    async def load(self, name: str, config: str) -> None:
        """Load a model, or load it anew, on all its servers; `config`, as JSON, in place of theirs. Raises
        Refusal, also when some of them did."""
        await self._on_all(name, "loaded", lambda server, model: server.load(model, config, LOAD_S))

    async def unload(self, name: str, dependents: bool) -> None:
        """The like for an unload; `dependents`: with what an ensemble is made of."""
        await self._on_all(name, "unloaded", lambda server, model: server.unload(model, dependents, UNLOAD_S))

    async def _entries(self, model: Model, options: Options) -> list[IndexEntry]:
        name = model.config.name
        snapshot = self._state.snapshot
        serving, reasons, others = False, list[str](), set[str]()
        for target in model.targets:
            key = target.key
            endpoint = snapshot.endpoints[key.endpoint]
            if endpoint.up and snapshot.variants[key].ready:
                serving = True
                continue
            others.add(key.version)
            fault = "it does not have the model ready" if endpoint.up else endpoint.detail or "it is down"
            reasons.append(f"{key.endpoint}: {fault}")
        versions = await self._questions.versions(name, "", options) if serving else ()
        up = sorted(versions, key=lambda v: (len(v), v)) or ([""] if serving else [])
        down = sorted(others - set(up) - ({""} if serving else set()))
        return [
            *(IndexEntry(name, version, READY) for version in up),
            *(IndexEntry(name, version, UNAVAILABLE, "; ".join(reasons)) for version in down),
        ]

    async def _on_all(self, name: str, done: str, act: Callable[[Loader, str], Awaitable[None]]) -> None:
        model = self._tables.models.get(name)
        if model is None:
            raise unknown_model(name)
        servers = {
            (target.key.endpoint, target.key.model): endpoint
            for target in model.targets
            if isinstance(endpoint := self._endpoints[target.key.endpoint], Loader)
        }
        if not servers:
            raise Refusal(
                Reason.NOT_SERVED,
                f"Model {shown(name)} is on no Triton server: what other endpoints serve follows the "
                "configuration and its releases.",
            )

        async def one(endpoint: str, server: Loader, model: str) -> AttemptError | None:
            try:
                await act(server, model)
            except AttemptError as error:
                return error
            finally:
                self._look(endpoint)
            return None

        outcomes = await asyncio.gather(
            *(one(endpoint, server, model) for (endpoint, model), server in servers.items())
        )
        failed = [(at, error) for (at, _), error in zip(servers, outcomes, strict=True) if error is not None]
        if not failed:
            return
        faults = "; ".join(f"on {at}: {_clause(error)}" for at, error in failed)
        well = ", ".join(at for (at, _), error in zip(servers, outcomes, strict=True) if error is None)
        others = f"; it was {done} on {well}" if well else ""
        raise Refusal(_reason(failed[0][1]), f"Model {shown(name)} was not {done} {faults}{others}.")


def _clause(error: AttemptError) -> str:
    return " ".join(error.message.split()).rstrip(".; ")


def _reason(error: AttemptError) -> Reason:
    """Triton calls a failure of its own what is wrong with a model or with the configuration given for it."""
    return Reason.CONFLICT if error.reason is Reason.ENDPOINT_FAILED else error.reason
