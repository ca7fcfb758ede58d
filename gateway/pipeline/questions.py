"""Questions about models: readiness, metadata, configuration. They carry no tensors, but a model's
name and the caller's version, so the classes that apply say which places may be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from gateway.core.decision import VariantKey
from gateway.core.errors import AttemptError, Refusal
from gateway.core.ports import Endpoint, Permit, Relay
from gateway.core.request import Options
from gateway.decide import compiled, unknown_model, version_refusal
from gateway.decide.groups import reach
from gateway.decide.tables import GROUP_PLACE, Compiled, Model, Target, Wall
from gateway.pipeline.signatures import ask_signature
from gateway.pipeline.state import ReplicaState
from gateway.policy.privacy import origin_of
from oip.codec import config_from, rename_config, rename_metadata, versions_of
from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason
from oip.signature import Signature

TIMEOUT_S = 2.0
"""How long one endpoint may take over a question."""


class Questions:
    """Answers from the first allowed place that is up and has the model ready.

    A device group is asked when some device in an allowed place has it; what its devices said of their
    models is known to the gateway, so the question goes to none of them.
    """

    def __init__(self, state: ReplicaState, endpoints: Mapping[str, Endpoint]) -> None:
        self._state = state
        self._endpoints = endpoints

    @property
    def _tables(self) -> Compiled:
        return compiled(self._state.config)

    def any_ready(self) -> bool:
        """Whether some model can be answered somewhere."""
        return any(self.serving(model, "", Options()) for model in self._tables.models.values())

    async def model_ready(self, name: str, version: str, options: Options) -> bool:
        """Raises Refusal for an unknown model, or a version that no variant can have or no endpoint has."""
        model = self._model(name, version, options)
        for target in self.serving(model, version, options):
            if not version or self._versions(target) or target.place is None:
                return True
            # Only the endpoint knows.
            try:
                endpoint = self._asked(target, model, options)
            except AttemptError:
                continue
            health = await endpoint.health([(target.key.model, version)], TIMEOUT_S)
            if health.up and all(asked.ready for asked in health.models):
                return True
        if version:
            # Not ready and not there look the same to that question.
            await self.versions(name, version, options)
        return False

    async def model_metadata(self, name: str, version: str, options: Options) -> bytes:
        """A serialized ModelMetadataResponse under the gateway's own model name. Raises TidegateError."""
        answer = await self._ask(
            name, version, options, lambda e, k: e.model_metadata(k.model, k.version, TIMEOUT_S)
        )
        return rename_metadata(answer, name)

    async def model_config(self, name: str, version: str, options: Options) -> bytes:
        """A serialized ModelConfigResponse under the gateway's own model name; of an endpoint that has no
        configurations, as much as its metadata says. Raises TidegateError."""
        return rename_config(await self._ask(name, version, options, _config), name)

    async def signature(self, name: str, version: str, options: Options) -> Signature:
        """What a model takes and gives, as far as one place says so. Raises TidegateError."""
        model = self._model(name, version, options)
        for target in self.serving(model, version, options):
            state = self._state.snapshot.variants.get(target.key)
            if state is not None and state.signature is not None and (not version or self._versions(target)):
                return state.signature
            try:
                endpoint = self._asked(target, model, options)
            except AttemptError:
                continue
            asked = await ask_signature(endpoint, target.key.model, target.key.version or version)
            if asked is not None:
                return asked
        raise _nobody(name)

    async def versions(self, name: str, version: str, options: Options) -> tuple[str, ...]:
        """The versions that answer now, as far as that can be told; `version` alone, where it is one of them.
        Raises Refusal for an unknown model or version."""
        model = self._model(name, version, options)
        found: set[str] = set()
        unknown = False
        for target in self.serving(model, version, options):
            told = self._told(target)
            if not told:
                try:
                    endpoint = self._asked(target, model, options)
                    told = versions_of(await endpoint.model_metadata(target.key.model, version, TIMEOUT_S))
                except OipError as error:
                    unknown = unknown or error.reason is Reason.UNKNOWN_MODEL
            found.update(told)
        if version and unknown and not found:
            raise unknown_model(name, version)
        return (version,) if version else tuple(found)

    def _told(self, target: Target) -> tuple[str, ...]:
        """The versions that a variant is known to answer with; () where only its endpoint knows."""
        if target.place is not None or target.key.version:
            return self._versions(target)
        group = self._state.snapshot.groups[target.key.endpoint]
        return tuple(version for name, version in group.ready if name == target.key.model and version)

    def _model(self, name: str, version: str, options: Options) -> Model:
        model = self._tables.models.get(name)
        if model is None:
            raise unknown_model(name)
        if (refusal := version_refusal(version)) is not None:
            raise refusal
        if version:
            # What a forbidden place has is nothing that this question could be answered from.
            wall, snapshot = self._wall(model, options), self._state.snapshot
            allowed = [t for t in model.targets if not reach(snapshot, t, wall).refused_by]
            if not any(self._has(target, version, wall) for target in allowed or model.targets):
                raise unknown_model(name, version)
        return model

    def serving(self, model: Model, version: str, options: Options) -> list[Target]:
        """The variants that may be asked and can answer now."""
        wall = self._wall(model, options)
        if wall.gateway:
            return []
        snapshot = self._state.snapshot
        return [
            target
            for target in model.targets
            if target.key.endpoint not in options.hops
            and not self._closed(target, wall)
            and self._has(target, version, wall)
            and snapshot.endpoints[target.key.endpoint].up
            and snapshot.variants[target.key].ready
        ]

    def _has(self, target: Target, version: str, wall: Wall) -> bool:
        """Whether it may answer with the version, "" for any. Not known of an endpoint is a yes."""
        if not version:
            return True
        if target.place is None and not target.key.version:
            return not reach(self._state.snapshot, target, wall, version).lacks
        versions = self._versions(target)
        return not versions or version in versions

    def _versions(self, target: Target) -> tuple[str, ...]:
        """Those that it answers with; () where only its endpoint knows."""
        if target.key.version:
            return (target.key.version,)
        return self._state.variant(target.key).versions

    def _wall(self, model: Model, options: Options) -> Wall:
        origin = origin_of(self._tables.gateway, options)
        return self._tables.wall(model.classes(options), origin, options.allowed)

    def forbidden(self, target: Target, model: Model, options: Options) -> bool:
        """Whether the classes that apply keep such questions from the variant's place, or from here."""
        wall = self._wall(model, options)
        return bool(wall.gateway or reach(self._state.snapshot, target, wall).refused_by)

    def _closed(self, target: Target, wall: Wall) -> bool:
        found = reach(self._state.snapshot, target, wall)
        return bool(found.refused_by or found.away)

    def _asked(self, target: Target, model: Model, options: Options) -> Endpoint:
        """The endpoint to put the question to. Raises AttemptError for one that must not have it."""
        endpoint = self._endpoints[target.key.endpoint]
        if not isinstance(endpoint, Relay):
            return endpoint
        place = target.place or GROUP_PLACE
        hops = (*options.hops, self._tables.name)
        return endpoint.under(Permit(self._wall(model, options).allowed, place, hops))

    async def _ask(
        self,
        name: str,
        version: str,
        options: Options,
        question: Callable[[Endpoint, VariantKey], Awaitable[bytes]],
    ) -> bytes:
        failure: AttemptError | None = None
        model = self._model(name, version, options)
        for target in self.serving(model, version, options):
            key = target.key if target.key.version else target.key._replace(version=version)
            try:
                return await question(self._asked(target, model, options), key)
            except AttemptError as error:
                failure = error
        raise failure or _nobody(name)


def _nobody(name: str) -> Refusal:
    return Refusal(Reason.NO_CANDIDATE, f"No endpoint is ready to answer for model {shown(name)}")


async def _config(endpoint: Endpoint, key: VariantKey) -> bytes:
    try:
        return await endpoint.model_config(key.model, key.version, TIMEOUT_S)
    except AttemptError as error:
        if error.reason is not Reason.NOT_SERVED:
            raise
    return config_from(await endpoint.model_metadata(key.model, key.version, TIMEOUT_S))
