"""The model repository as operators see it through the gateway: its models under their own names, loaded
and unloaded on every Triton server that has them.

What other endpoints serve follows the configuration and its releases; there is nothing to load there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

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
FORBIDDEN = "the classes that apply do not allow its place"


class Repository:
    """`look` asks for a look at an endpoint, so that what changed there is soon known; `siblings` have looked
    before a change is reported, None where there are none."""

    def __init__(
        self,
        state: ReplicaState,
        endpoints: Mapping[str, Endpoint],
        questions: Questions,
        look: Callable[[str], None],
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
        return [entry for entries in found for entry in entries if not ready or entry.state == READY]

    async def load(self, name: str, config: str, options: Options) -> None:
        """Load a model, or load it anew, on all its servers; `config`, as JSON, in place of theirs. Raises
        Refusal, also when some of them did."""
        await self._on_all(name, "loaded", options, lambda server, model: server.load(model, config, LOAD_S))

    async def unload(self, name: str, dependents: bool, options: Options) -> None:
        """The like for an unload; `dependents`: with what an ensemble is made of."""
        await self._on_all(
            name, "unloaded", options, lambda server, model: server.unload(model, dependents, UNLOAD_S)
        )

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
        self, name: str, done: str, options: Options, act: Callable[[Loader, str], Awaitable[None]]
    ) -> None:
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name)
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
            finally:
                self._look(target.key.endpoint)
            return None

        outcomes = dict(zip(servers, await asyncio.gather(*(one(*s) for s in servers.values())), strict=True))
        if self._siblings is not None:
            # What was done is done: those that cannot be told find out by themselves.
            with contextlib.suppress(OipError):
                await self._siblings.look({at for at, _ in servers})
        failed = [(at, error) for (at, _), error in outcomes.items() if error is not None]
        if not failed:
            return
        faults = "; ".join(f"on {at}: {_clause(error)}" for at, error in failed)
        well = ", ".join(at for (at, _), error in outcomes.items() if error is None)
        others = f"; it was {done} on {well}" if well else ""
        raise Refusal(_reason(failed[0][1]), f"Model {shown(name)} was not {done} {faults}{others}.")


def _clause(error: TidegateError) -> str:
    return " ".join(error.message.split()).rstrip(".; ")


def _reason(error: TidegateError) -> Reason:
    """Triton calls a failure of its own what is wrong with a model or with the configuration given for it."""
    return Reason.CONFLICT if error.reason is Reason.ENDPOINT_FAILED else error.reason
