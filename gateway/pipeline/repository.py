"""The model repository as operators see it through the gateway: its models under their own names, loaded
and unloaded on every Triton server that has them.

A server whose models are discovered is asked for those that it has not loaded: they are not on offer, so
that nobody else knows of them, and an operator can have them loaded.

What other endpoints serve follows the configuration and its releases; there is nothing to load there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from gateway.core.config.discovered import found_of, offer
from gateway.core.errors import AttemptError, Refusal, TidegateError
from gateway.core.ports import Endpoint, Loader
from gateway.core.request import Options
from gateway.decide import compiled, unknown_model
from gateway.decide.tables import Model, Target
from gateway.pipeline.questions import Questions
from gateway.pipeline.siblings import Siblings
from gateway.pipeline.state import ReplicaState
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason
from oip.repository import READY, UNAVAILABLE, IndexEntry

LOAD_S = 300.0
"""How long a server may take to load a model."""
UNLOAD_S = 10.0
INDEX_S = 5.0
NOT_LOADED = "it is not loaded"
FORBIDDEN = "the classes that apply do not allow its place"


class Repository:
    """`look` returns when an endpoint has been looked at anew, and `siblings` when all replicas have done so, None
    where there are no others: what a change made is known before it is answered."""

    def __init__(
        self,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        questions: Questions,
        look: Callable[[str], Awaitable[None]],
        siblings: Siblings | None = None,
    ) -> None:
        self._state = state
        self._endpoints = endpoints
        self._questions = questions
        self._look = look
        self._siblings = siblings

    @property
    def _models(self) -> Mapping[str, Model]:
        return compiled(self._state.snapshot.config).models

    async def index(self, options: Options, *, ready: bool) -> Sequence[IndexEntry]:
        """Every model's versions; with `ready` those alone that can answer now."""
        found = await asyncio.gather(*(self._entries(m, options) for m in self._models.values()))
        entries = [entry for listed in found for entry in listed if not ready or entry.state == READY]
        return entries if ready else [*entries, *await self._not_loaded()]

    async def load(self, name: str, config: str, options: Options) -> None:
        """Load a model, or load it anew, on all its servers; `config`, as JSON, in place of theirs. Raises
        Refusal, also when some of them did."""
        model = self._models.get(name) or (await self._discoverable()).get(name)
        if model is None:
            # Clients of Triton's look for these words of its own.
            raise Refusal(
                Reason.UNKNOWN_MODEL,
                f"Request for unknown model: failed to load {shown(name)}, which no endpoint has",
            )
        await self._on_all(model, "loaded", options, lambda server, at: server.load(at, config, LOAD_S))

    async def unload(self, name: str, dependents: bool, options: Options) -> None:
        """The like for an unload; `dependents`: with what an ensemble is made of."""
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name)
        await self._on_all(
            model, "unloaded", options, lambda server, at: server.unload(at, dependents, UNLOAD_S)
        )

    async def _not_loaded(self) -> list[IndexEntry]:
        models = await self._discoverable()
        return [
            IndexEntry(
                name,
                "",
                UNAVAILABLE,
                "; ".join(f"{target.key.endpoint}: {NOT_LOADED}" for target in models[name].targets),
            )
            for name in sorted(models.keys() - self._models.keys())
        ]

    async def _discoverable(self) -> Mapping[str, Model]:
        """The models as they were if every server whose models are discovered had loaded all that it can."""
        config = self._state.snapshot.config
        servers = {
            e.name: server
            for e in config.endpoints
            if e.discovers is not None and isinstance(server := self._endpoints[e.name], Loader)
        }
        told = await asyncio.gather(
            *(server.repository(INDEX_S) for server in servers.values()), return_exceptions=True
        )
        known = self._models.keys()
        found = {
            name: found_of(names - known)
            for name, names in zip(servers, told, strict=True)
            if not isinstance(names, BaseException)
        }
        return compiled(offer(config, found).config).models

    async def _entries(self, model: Model, options: Options) -> list[IndexEntry]:
        name = model.config.name
        serving = self._questions.serving(model, "", options)
        versions = await self._questions.versions(name, "", options) if serving else ()
        up = sorted({*versions} - {""}, key=lambda v: (len(v), v)) or ([""] if serving else [])
        others = [target for target in model.targets if target not in serving]
        down = sorted({target.key.version for target in others} - {*up, *([""] if serving else [])})
        reasons = "; ".join(
            f"{target.key.endpoint}: {self._fault(target, model, options)}" for target in others
        )
        return [
            *(IndexEntry(name, version, READY) for version in up),
            *(IndexEntry(name, version, UNAVAILABLE, reasons) for version in down),
        ]

    def _fault(self, target: Target, model: Model, options: Options) -> str:
        """Why a variant does not answer."""
        if self._questions.forbidden(target, model, options):
            return FORBIDDEN
        endpoint = self._state.snapshot.endpoints[target.key.endpoint]
        if endpoint.up:
            return "it does not have the model ready"
        return endpoint.detail or "it is down"

    async def _on_all(
        self, model: Model, done: str, options: Options, act: Callable[[Loader, str], Awaitable[None]]
    ) -> None:
        name = model.config.name
        servers = {
            (target.key.endpoint, target.key.model): (endpoint, target)
            for target in model.targets
            if isinstance(endpoint := self._endpoints[target.key.endpoint], Loader)
        }
        if not servers:
            raise Refusal(
                Reason.NOT_SERVED,
                f"Model {shown(name)} is on no Triton server: what other endpoints serve follows the "
                "configuration and its releases.",
            )

        async def one(server: Loader, target: Target) -> TidegateError | None:
            if self._questions.forbidden(target, model, options):
                return Refusal(Reason.PRIVACY, FORBIDDEN)
            try:
                await act(server, target.key.model)
            except AttemptError as error:
                return error
            return None

        outcomes = dict(zip(servers, await asyncio.gather(*(one(*s) for s in servers.values())), strict=True))
        await self._look_everywhere({at for at, _ in servers})
        failed = [(at, error) for (at, _), error in outcomes.items() if error is not None]
        if not failed:
            return
        faults = "; ".join(f"on {at}: {_clause(error)}" for at, error in failed)
        well = ", ".join(at for (at, _), error in outcomes.items() if error is None)
        others = f"; it was {done} on {well}" if well else ""
        raise Refusal(_reason(failed[0][1]), f"Model {shown(name)} was not {done} {faults}{others}.")

    async def _look_everywhere(self, endpoints: Collection[str]) -> None:
        if self._siblings is not None:
            # What was done is done: those that cannot be told find out by themselves.
            with contextlib.suppress(OipError):
                await self._siblings.look(endpoints)
                return
        await asyncio.gather(*map(self._look, endpoints))


def _clause(error: TidegateError) -> str:
    return " ".join(error.message.split()).rstrip(".; ")


def _reason(error: TidegateError) -> Reason:
    """Triton calls a failure of its own what is wrong with a model or with the configuration given for it."""
    return Reason.CONFLICT if error.reason is Reason.ENDPOINT_FAILED else error.reason
