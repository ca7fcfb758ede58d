"""The data plane as control sees it, over replicas that answer what a test has them answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tests.support.quiet_ray  # noqa: F401  # isort: skip  # before anything that uses Ray
from gateway.pipeline.served import Served
from gateway.serve import planes as module
from gateway.serve.crossing import answered, value_of
from gateway.serve.planes import Planes
from gateway.telemetry.metrics import Metrics
from oip.errors import OipError
from oip.reasons import Reason

Answer = Callable[..., Any]


class Replicas:
    """Replicas by name: what each gives to a method, or raises. `asked` are the methods that were asked of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **replicas: dict[str, Answer]) -> None:
        self.replicas = replicas
        self.asked: list[str] = []
        monkeypatch.setattr(module, "ask_all", self.ask_all)
        monkeypatch.setattr(module, "ask", self.ask)

    async def ask_all(self, deployment: str, what: str, method: str, *args: Any) -> list[dict[str, Any]]:
        if not self.replicas:
            raise OipError(Reason.UNAVAILABLE, "the data plane is not available")
        return [await answered(_called(replica[method], args)) for replica in self.replicas.values()]

    async def ask(self, deployment: str, what: str, method: str, *args: Any) -> Any:
        self.asked.append(method)
        return value_of(await answered(_called(next(iter(self.replicas.values()))[method], args)))


async def _called(answer: Answer, args: tuple[Any, ...]) -> Any:
    return answer(*args)


def refuses(reason: Reason, text: str) -> Answer:
    def refused(*_: Any) -> Any:
        raise OipError(reason, text)

    return refused


async def test_a_release_serves_where_every_replica_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def follow(name: str, **says: str) -> dict[str, Answer]:
        return {"follow": lambda release: (told.append(name), says)[1]}

    Replicas(monkeypatch, a=follow("a", pool="", rack=""), b=follow("b", pool="", rack="Triton says: no"))
    release: Any = object()
    assert await Planes().follow(release) == {"pool": "", "rack": "Triton says: no"}
    assert told == ["a", "b", "a", "b"], "the one that moves it first, then once more"


async def test_a_decision_is_told_by_the_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str) -> dict[str, Answer]:
        return {"decision": lambda id: {"id": id} if id.startswith(name) else None}

    Replicas(monkeypatch, a=of("a"), b=of("b"))
    assert await Planes().decision("b-000001") == {"id": "b-000001"}
    assert await Planes().decision("c-000001") is None


async def test_one_measures_at_a_time_and_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    running = {"a": False, "b": False}
    unknown = refuses(Reason.NOT_FOUND, "no measurement 7")

    def of(name: str, **answers: Answer) -> dict[str, Answer]:
        return {"measuring": lambda: running[name], "measure": lambda *_: {"id": "7"}, **answers}

    replicas = Replicas(
        monkeypatch, a=of("a", measurement=unknown), b=of("b", measurement=lambda _: {"id": "7"})
    )
    assert await Planes().measure("e", "m", "1") == {"id": "7"}
    assert await Planes().measurement("7") == {"id": "7"}
    running["b"] = True
    with pytest.raises(OipError, match="another measurement is running"):
        await Planes().measure("e", "m", "1")
    assert replicas.asked == ["measure"]
    del replicas.replicas["b"]
    with pytest.raises(OipError, match="no measurement 7"):
        await Planes().measurement("7")


async def test_counts_and_metrics_outlive_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str, times: int) -> dict[str, Answer]:
        served, metrics = Served(), Metrics()
        for _ in range(times):
            served.answered("m", "1", 0.5, 1, 0.0)
            metrics.request_started()
        metrics.telemetry_dropped("spans", times)
        return {"counts": lambda: (name, served.counts), "metrics": lambda: (name, list(metrics.collect()))}

    replicas, planes = Replicas(monkeypatch, a=of("a", 3), b=of("b", 4)), Planes()
    for gone in (None, "a", "b"):
        replicas.replicas.pop(gone or "", None)
        text = (await planes.scrape(""))[0].decode()
        assert 'tidegate_telemetry_dropped_total{signal="spans"} 7.0' in text
        if gone == "b":
            with pytest.raises(OipError, match="the data plane is not available"):
                await planes.counts()
        else:
            assert (await planes.counts())["m"]["1"].success == 7
    replicas.replicas["c"] = of("c", 1)
    assert (await planes.counts())["m"]["1"].success == 8
    for number in range(2 * module.MOST_ENDED):
        replicas.replicas = {f"n{number}": of(f"n{number}", 1)}
        assert (await planes.counts())["m"]["1"].success == 9 + number


async def test_a_change_that_is_refused_is_an_error_and_settings_are_those_of_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gateway.telemetry.settings import State
    from oip.settings import TraceSettings

    states = [State(0, TraceSettings(True, 20), None), State(3, TraceSettings(True, 7), None)]
    wrong = refuses(Reason.MALFORMED, "There is no trace setting x")
    replicas = {
        name: {"settings": lambda s=s: s, "change": wrong} for name, s in zip("ab", states, strict=True)
    }
    Replicas(monkeypatch, **replicas)
    assert await Planes().settings() == states[1]
    with pytest.raises(OipError, match="There is no trace setting x"):
        await Planes().change("trace", {"x": ["1"]})
