"""The repository through the gateway: what its index says, and what loads and unloads reach."""

from __future__ import annotations

import pytest

from gateway.core.errors import AttemptError, Refusal
from gateway.core.ports import Health, ModelHealth
from gateway.core.request import Options
from oip.reasons import Reason
from tests.support.discovering import discovering
from tests.support.fakes import Bench, FakeEndpoint, bench, config_of, failure

NONE = Options()


class Loading(FakeEndpoint):
    """An endpoint that loads: keeps what it was told, or raises `error`."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        super().__init__(config_of().endpoints[0])
        self.name = endpoint.name
        self.told: list[tuple[str, str | bool]] = []
        self.error: AttemptError | None = None
        self.has: frozenset[str] | AttemptError = frozenset()

    async def repository(self, timeout_s: float) -> frozenset[str]:
        if isinstance(self.has, AttemptError):
            raise self.has
        return self.has

    async def load(self, model: str, config: str, timeout_s: float) -> None:
        self._note(model, config)

    async def unload(self, model: str, dependents: bool, timeout_s: float) -> None:
        self._note(model, dependents)

    def _note(self, model: str, what: str | bool) -> None:
        self.told.append((model, what))
        if self.error is not None:
            raise self.error


async def with_loading(*names: str) -> tuple[Bench, dict[str, Loading]]:
    b = await bench()
    loading = {name: Loading(b.endpoints[name]) for name in names}
    b.endpoints.update(loading)
    return b, loading


async def test_a_load_reaches_every_server_under_its_own_name():
    b, loading = await with_loading("cloud", "far")
    await b.director.load_model("digits", '{"max_batch_size": 4}', NONE)
    await b.director.unload_model("digits", True, NONE)
    assert loading["cloud"].told == [("digits-big", '{"max_batch_size": 4}'), ("digits-big", True)]
    assert loading["far"].told == [("digits", '{"max_batch_size": 4}'), ("digits", True)]
    assert sorted(b.looked) == ["cloud", "cloud", "far", "far"]


async def test_what_some_servers_did_and_others_not_is_told():
    b, loading = await with_loading("cloud", "far")
    loading["far"].error = failure(Reason.MALFORMED)
    with pytest.raises(Refusal) as caught:
        await b.director.load_model("digits", "", NONE)
    assert caught.value.reason is Reason.MALFORMED
    assert caught.value.message == "Model 'digits' was not loaded on far: it failed; it was loaded on cloud."
    loading["cloud"].error = failure(Reason.UNAVAILABLE)
    with pytest.raises(Refusal) as caught:
        await b.director.unload_model("digits", False, NONE)
    assert caught.value.message == "Model 'digits' was not unloaded on cloud: it failed; on far: it failed."


async def test_what_is_wrong_with_a_model_is_no_failure_of_the_gateway():
    b, loading = await with_loading("cloud")
    loading["cloud"].error = failure(Reason.ENDPOINT_FAILED)
    with pytest.raises(Refusal) as caught:
        await b.director.load_model("digits", "", NONE)
    assert caught.value.reason is Reason.CONFLICT


async def test_a_model_that_is_on_no_triton_is_not_loaded():
    b = await bench()
    for act in (b.director.load_model("digits", "", NONE), b.director.unload_model("digits", False, NONE)):
        with pytest.raises(Refusal) as caught:
            await act
        assert caught.value.reason is Reason.NOT_SERVED
    with pytest.raises(Refusal) as caught:
        await b.director.load_model("nobody", "", NONE)
    assert caught.value.reason is Reason.UNKNOWN_MODEL
    assert caught.value.message.startswith("Request for unknown model")


async def test_what_a_server_has_not_loaded_can_be_loaded_where_it_is_to_be_discovered():
    b = await bench(discovering(site="public", cloud="public", far=None))
    loading = {name: Loading(b.endpoints[name]) for name in ("site", "cloud", "far")}
    b.endpoints.update(loading)
    loading["site"].has = loading["far"].has = frozenset({"other", "digits"})
    loading["cloud"].has = failure(Reason.UNAVAILABLE)
    assert ("other", "", "UNAVAILABLE", "site: it is not loaded") in await index(b)
    assert "other" not in {entry[0] for entry in await index(b, ready=True)}
    await b.director.load_model("other", "{}", NONE)
    assert {name: server.told for name, server in loading.items()} == {
        "site": [("other", "{}")],
        "cloud": [],
        "far": [],
    }
    with pytest.raises(
        Refusal, match=r"^Request for unknown model: failed to load 'nobody', which"
    ) as caught:
        await b.director.load_model("nobody", "", NONE)
    assert caught.value.reason is Reason.UNKNOWN_MODEL


async def test_a_load_stays_inside_the_privacy_wall():
    b, loading = await with_loading("cloud", "far")
    with pytest.raises(Refusal) as caught:
        await b.director.load_model("digits", "", Options(privacy="eu"))
    assert caught.value.reason is Reason.PRIVACY
    assert caught.value.message == (
        "Model 'digits' was not loaded on far: the classes that apply do not allow its place;"
        " it was loaded on cloud."
    )
    assert (loading["cloud"].told, loading["far"].told) == ([("digits-big", "")], [])
    own = [tuple(entry) for entry in await b.director.repository_index(Options(privacy="own"), ready=False)]
    assert [entry[2] for entry in own] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert "cloud: the classes that apply do not allow its place" in own[0][3]


async def index(b: Bench, *, ready: bool = False) -> list[tuple[str, ...]]:
    return [tuple(entry) for entry in await b.director.repository_index(NONE, ready=ready)]


async def test_the_index_says_which_versions_answer_and_why_others_do_not():
    b = await bench()
    assert await index(b) == [("digits", "1", "READY", ""), ("digits", "3", "READY", "")]
    b.state.heard("cloud", Health(up=True, models=(ModelHealth("digits-big", "3", False),)))
    reason = "cloud: it does not have the model ready"
    assert await index(b) == [("digits", "1", "READY", ""), ("digits", "3", "UNAVAILABLE", reason)]
    assert await index(b, ready=True) == [("digits", "1", "READY", "")]
    for name in ("site", "far"):
        b.state.heard(name, Health(up=False, detail="cannot be reached"))
    reasons = "site: cannot be reached; cloud: it does not have the model ready; far: cannot be reached"
    assert await index(b) == [("digits", "", "UNAVAILABLE", reasons), ("digits", "3", "UNAVAILABLE", reasons)]
    assert await index(b, ready=True) == []
