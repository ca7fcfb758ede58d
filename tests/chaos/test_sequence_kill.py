"""Twenty sequences at once, three Tritons, two data plane replicas: right sums or clear errors, whoever is killed.

Every step takes a connection of its own and the other wire than the last one, so that steps of one sequence come
to both replicas.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.demo.triton import TritonServer
from tests.support.gateway import Gateway, running_gateway
from tests.support.triton import REPOSITORY

pb: Any = service_pb2
SEQUENCES = 20
TIMEOUT_S = 30.0
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
NOT_STARTED = "must specify the START flag on the first request of the sequence"
LOST = {"UNAVAILABLE", "CANCELLED", "INTERNAL"}
"""How a call ends whose replica or server is killed under it."""

CONFIG = """
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}, replicas: {{min: 2, max: 2}}}}
endpoints:
{endpoints}
models:
  - {{name: sequence_sum, variants: {variants}}}
  - {{name: simple_sequence, variants: {variants}}}
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{quality: 1}}, retry: {{num_retries: 2, budget_percent: 100, min_concurrent: 100}}}}]
"""


@dataclass
class Told:
    """How a step ended: the gRPC status's name or the HTTP status, and what came of it."""

    status: str
    output: int = 0
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def ok(self) -> bool:
        return self.status in ("OK", "200")

    @property
    def not_started(self) -> bool:
        return self.status in ("INVALID_ARGUMENT", "400") and NOT_STARTED in self.message

    @property
    def lost(self) -> bool:
        return self.status in LOST or self.status in ("503", "")


def over_grpc(gateway: Gateway, body: Any) -> Told:
    with grpc.insecure_channel(gateway.grpc, options=OWN_CONNECTION) as channel:
        try:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answer, call = stub.ModelInfer.with_call(body, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return Told(error.code().name, message=error.details() or "")
        output = int(np.frombuffer(answer.raw_output_contents[0], np.int32)[0])
        return Told("OK", output, metadata=dict(call.initial_metadata()))


def over_http(gateway: Gateway, body: Any) -> Told:
    message = {
        "parameters": {
            "sequence_id": _value(body.parameters["sequence_id"]),
            "sequence_start": body.parameters["sequence_start"].bool_param,
            "sequence_end": body.parameters["sequence_end"].bool_param,
        },
        "inputs": [
            {
                "name": "INPUT",
                "shape": [1, 1],
                "datatype": "INT32",
                "data": np.frombuffer(body.raw_input_contents[0], np.int32).tolist(),
            }
        ],
    }
    url = f"http://{gateway.http}/v2/models/{body.model_name}/infer"
    try:
        answer = httpx.post(url, json=message, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return Told("", message=type(error).__name__)
    said = json.loads(answer.content)
    if answer.status_code != 200:
        return Told(str(answer.status_code), message=said["error"])
    (output,) = next(o["data"] for o in said["outputs"] if o["name"] == "OUTPUT")
    return Told("200", output, metadata=dict(answer.headers))


def _value(parameter: Any) -> int | str:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def step_of(model: str, id: int | str, value: int, *, start: bool = False, end: bool = False) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.append(np.array([value], np.int32).tobytes())
    setattr(message.parameters["sequence_id"], "int64_param" if isinstance(id, int) else "string_param", id)
    message.parameters["sequence_start"].bool_param = start
    message.parameters["sequence_end"].bool_param = end
    return message


class Walk:
    """One sequence of `sequence_sum`. Checks each sum against what it can be: a step that was lost with the
    process that held it may have been added or not."""

    def __init__(self, gateway: Gateway, id: int | str) -> None:
        self._gateway = gateway
        self.id = id
        self._can_be = {0}
        self._steps = 0
        self.homes: set[str] = set()
        self.replicas: set[str] = set()

    def step(self, value: int, *, start: bool = False, end: bool = False) -> Told:
        ask = over_grpc if self._steps % 2 else over_http
        self._steps += 1
        told = ask(self._gateway, step_of("sequence_sum", self.id, value, start=start, end=end))
        before = {0} if start else self._can_be
        after = {total + value for total in before}
        if told.ok:
            assert told.output in after, f"{self.id}: {told.output} is none of {after}"
            assert told.metadata["tidegate-attempts"] == "1"
            self._can_be = {told.output}
            self.homes = {told.metadata["tidegate-endpoint"]} | (set() if start else self.homes)
            self.replicas.add(told.metadata["tidegate-decision"].split("-")[0])
        elif told.lost:
            self._can_be = before | after
        else:
            assert told.not_started, told
        return told

    def begin(self) -> Told:
        return self.step(1, start=True)


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TritonServer]]:
    """With room for all sequences on each, for as long as a test takes."""
    models = tmp_path_factory.mktemp("models")
    for name in ("sequence_sum", "simple_sequence"):
        shutil.copytree(REPOSITORY / name, models / name)
        config = models / name / "config.pbtxt"
        text = config.read_text().replace("max_batch_size: 8", "max_batch_size: 64")
        config.write_text(text.replace("microseconds: 10000000", "microseconds: 300000000"))
    servers = {f"t{i}": TritonServer(models, load=["sequence_sum", "simple_sequence"]) for i in range(3)}
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(TritonServer.start, servers.values()))
        yield servers
    finally:
        for server in servers.values():
            server.kill()


@pytest.fixture(scope="module")
def gateway(tritons: dict[str, TritonServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    where = "location: {tier: cloud, region: eu}"
    endpoints = "\n".join(
        f'  - {{name: {name}, kind: triton, url: "grpc://127.0.0.1:{server.grpc_port}", {where}}}'
        for name, server in tritons.items()
    )
    variants = "[" + ", ".join(f"{{endpoint: {name}}}" for name in tritons) + "]"
    config = CONFIG.format(endpoints=endpoints, variants=variants)
    with running_gateway(config, tmp_path_factory.mktemp("gw")) as running:
        running.wait_up(*tritons)
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SEQUENCES) as threads:
        yield threads


def walks(gateway: Gateway, label: str) -> list[Walk]:
    """Integer and string ids; 7 and "7" are two."""
    offset = sum(label.encode()) * 1000
    numbers = [offset + number for number in range(SEQUENCES // 2)]
    return [Walk(gateway, number) for number in numbers] + [Walk(gateway, str(number)) for number in numbers]


def all_begun(pool: ThreadPoolExecutor, found: list[Walk]) -> None:
    """Each begun, and one step on."""
    assert all(told.ok for told in pool.map(Walk.begin, found))
    assert all(told.ok for told in pool.map(lambda walk: walk.step(2), found))


def test_steps_stay_where_their_state_is(gateway: Gateway, pool: ThreadPoolExecutor):
    def whole(walk: Walk) -> list[Told]:
        told = [walk.begin(), *(walk.step(value) for value in range(2, 8)), walk.step(8, end=True)]
        return [*told, walk.step(9)]

    found = walks(gateway, "a")
    for walk, told in zip(found, pool.map(whole, found), strict=True):
        assert [each.output for each in told[:-1]] == [1, 3, 6, 10, 15, 21, 28, 36], walk.id
        assert told[-1].not_started, told[-1]
        assert len(walk.homes) == 1
    assert len({home for walk in found for home in walk.homes}) > 1
    assert max(len(walk.replicas) for walk in found) == 2


def test_a_model_of_the_examples_over_both_wires(gateway: Gateway, pool: ThreadPoolExecutor):
    def whole(number: int) -> list[int]:
        ask = over_http if number % 2 else over_grpc
        steps = [(11, True, False), (7, False, False), (5, False, False), (3, False, True)]
        bodies = [step_of("simple_sequence", number, v, start=start, end=end) for v, start, end in steps]
        return [ask(gateway, body).output for body in bodies]

    assert list(pool.map(whole, range(1, SEQUENCES + 1))) == [[12, 7, 5, 3]] * SEQUENCES


def test_steps_of_two_streams_that_came_to_two_replicas(gateway: Gateway):
    """ModelStreamInfer: each stream stays with its replica, and the sequence goes over from one to the other."""

    def said(bodies: list[Any]) -> tuple[str, list[int]]:
        with grpc.insecure_channel(gateway.grpc, options=OWN_CONNECTION) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter(bodies), timeout=TIMEOUT_S)
            answers = [answer.infer_response for answer in call if not answer.error_message]
            sums = [int(np.frombuffer(answer.raw_output_contents[0], np.int32)[0]) for answer in answers]
            return dict(call.initial_metadata())["tidegate-decision"].split("-")[0], sums

    total, replicas = 0, set[str]()
    for turn in range(12):
        bodies = [step_of("sequence_sum", "st", value, start=turn == value == 0) for value in range(5)]
        replica, sums = said(bodies)
        assert sums == [total, total + 1, total + 3, total + 6, total + 10]
        total += 10
        replicas.add(replica)
    assert len(replicas) == 2


def test_counts_are_the_gateways_and_not_a_replicas(gateway: Gateway):
    def figures() -> tuple[int, float]:
        stats = httpx.get(f"http://{gateway.http}/v2/models/simple_sequence/stats").json()
        scrape = httpx.get(f"http://{gateway.metrics}/metrics").text
        counted = sum(
            float(line.rpartition(" ")[2])
            for line in scrape.splitlines()
            if line.startswith("tidegate_requests_total{") and 'model="simple_sequence"' in line
        )
        return stats["model_stats"][0]["inference_count"], counted

    # What answers requests does not give way to what else runs on the machine.
    assert {psutil.Process(pid).nice() for pid in gateway.pids["data_plane"]} == {psutil.Process().nice()}
    before = figures()
    for number in range(30):
        assert over_http(gateway, step_of("simple_sequence", number + 1, 1, start=True, end=True)).ok
    assert {figures() for _ in range(8)} == {(before[0] + 30, before[1] + 30)}


def test_settings_are_the_gateways_and_not_a_replicas(gateway: Gateway):
    def each(path: str) -> set[str]:
        return {httpx.get(f"http://{gateway.http}{path}").text for _ in range(10)}

    assert httpx.post(f"http://{gateway.http}/v2/trace/setting", json={"trace_rate": "7"}).status_code == 200
    (trace,) = each("/v2/trace/setting")
    assert json.loads(trace)["trace_rate"] == "7"
    refused = httpx.post(f"http://{gateway.http}/v2/logging", json={"log_nothing": True})
    assert refused.status_code == 400
    assert len(each("/v2/logging")) == 1


def test_a_replica_is_killed_in_mid_sequence(gateway: Gateway, pool: ThreadPoolExecutor):
    found = walks(gateway, "b")
    all_begun(pool, found)
    killed = gateway.pids["data_plane"][0]
    count = figure(gateway)

    def on(walk: Walk) -> list[Told]:
        return [walk.step(value) for value in range(1, 20)]

    walking = [pool.submit(on, walk) for walk in found]
    os.kill(killed, signal.SIGKILL)
    told = [each for done in walking for each in done.result()]
    assert {each.status for each in told if not each.ok} <= {*LOST, "503", ""}, told
    ends = list(pool.map(lambda walk: walk.step(1, end=True), found))
    assert all(end.ok or end.lost for end in ends)
    assert [end.ok for end in ends].count(True) >= SEQUENCES // 2
    assert all(len(walk.homes) == 1 for walk in found)
    assert figure(gateway) >= count


def decided_by(gateway: Gateway) -> str:
    told = over_http(gateway, step_of("simple_sequence", 1, 1, start=True, end=True))
    return told.metadata.get("tidegate-decision", "").split("-")[0]


def figure(gateway: Gateway) -> float:
    """Requests that the scrape has seen so far."""
    lines = httpx.get(f"http://{gateway.metrics}/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("tidegate_requests_total{")
    )


def test_control_is_killed_in_mid_sequence(gateway: Gateway, pool: ThreadPoolExecutor):
    """Steps wait for it. It has every home again, those of sequences that were begun anew too."""
    found = walks(gateway, "c")
    all_begun(pool, found)
    assert all(told.ok for told in pool.map(Walk.begin, found[::2]))

    def on(walk: Walk) -> list[Told]:
        return [walk.step(value) for value in range(1, 6)] + [walk.step(1, end=True)]

    (control,) = gateway.pids["control"]
    os.kill(control, signal.SIGKILL)
    told = [each for steps in pool.map(on, found) for each in steps]
    refused = [each for each in told if not each.ok]
    assert {each.status for each in refused} <= {"503", "UNAVAILABLE"}, refused
    assert all("control is not available" in each.message for each in refused)
    assert len(refused) < len(told) / 2


def test_who_was_killed_is_replaced_and_goes_on_as_the_others_do(gateway: Gateway):
    """The replica has the settings that were changed before it was there."""

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return bool(gateway.get("/api/v1/endpoints"))
        return False

    gateway.wait(answers, 60.0)
    gateway.wait(lambda: len({decided_by(gateway) for _ in range(10)} - {""}) == 2, 60.0)
    gateway.wait(lambda: traced(gateway) == {"7"}, 60.0)


def traced(gateway: Gateway) -> set[str]:
    answers = [httpx.get(f"http://{gateway.http}/v2/trace/setting") for _ in range(10)]
    return {answer.json()["trace_rate"] for answer in answers}


def test_a_home_is_killed_in_mid_sequence(
    gateway: Gateway, tritons: dict[str, TritonServer], pool: ThreadPoolExecutor
):
    """Its sequences are over and say so; others do not notice."""
    found = walks(gateway, "d")
    all_begun(pool, found)
    home = max(tritons, key=lambda name: sum(walk.homes == {name} for walk in found))
    its, others = ([w for w in found if (w.homes == {home}) is here] for here in (True, False))
    assert its
    tritons[home].kill()
    assert all(told.lost for told in pool.map(lambda walk: walk.step(3), its))
    assert all(pool.map(lambda walk: goes_on(walk, 3), others))
    tritons[home].start()
    gateway.wait_up(home)
    assert all(told.not_started for told in pool.map(lambda walk: walk.step(4), its))
    assert all(pool.map(lambda walk: goes_on(walk, 4), others))
    assert all(told.ok for told in pool.map(Walk.begin, its))
    assert all(pool.map(lambda walk: goes_on(walk, 5), its))
    assert all(len(walk.homes) == 1 for walk in found)


def goes_on(walk: Walk, value: int) -> bool:
    """Whether a step is answered in the end. On a machine that is busy with a Triton's start, another one may look
    down for a moment."""
    until = time.monotonic() + TIMEOUT_S
    while not (told := walk.step(value)).ok:
        assert told.lost, told
        assert time.monotonic() < until, told
        time.sleep(0.1)
    return True
