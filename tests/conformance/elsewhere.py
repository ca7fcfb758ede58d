"""Suites that other people wrote, straight at a Triton and through the gateway; what differs is shown.

    python -m tests.conformance.elsewhere --models REPOSITORY --examples CHECKOUT/src/python/examples
    python -m tests.conformance.elsewhere --models REPOSITORY --examples ... --at-once 20 --tritons 3 --replicas 2
    python -m tests.conformance.elsewhere --models REPOSITORY --dataplane CHECKOUT/openapi/dataplane.yaml

`--models` is a Triton model repository that has what the suites ask for. Nothing of a suite is changed, and
none of it is part of this project. With `--at-once` the examples of sequences alone are run, so many of each at a
time with ids of their own. `--dataplane` is MLServer's description of the protocol, which schemathesis puts to the
gateway alone. Exits with 1 when something passes straight and not through the gateway.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from gateway.demo.triton import TritonServer
from tests.support import schemathesis
from tests.support.gateway import running_gateway

CONFIG = """\
version: 1
gateway: {{name: gw, location: {{tier: cloud, region: eu}}, replicas: {{min: {replicas}, max: {replicas}}}}}
endpoints:
{endpoints}
models: []
privacy: {{default: any, classes: {{any: {{allow: [{{tier: [device, site, regional, cloud]}}]}}}}}}
policies: [{{name: default, match: {{}}, weights: {{latency: 1}}}}]
"""
ENDPOINT = """\
  - name: t{number}
    kind: triton
    url: grpc://127.0.0.1:{port}
    location: {{tier: cloud, region: eu}}
    discover: {{privacy: any}}
"""
TIMEOUT_S = 120
SERVERS = {
    "http": """simple_http_infer_client simple_http_aio_infer_client simple_http_async_infer_client
        simple_http_string_infer_client simple_http_health_metadata simple_http_model_control
        simple_http_sequence_sync_infer_client""",
    "grpc": """simple_grpc_infer_client simple_grpc_aio_infer_client simple_grpc_async_infer_client
        simple_grpc_string_infer_client simple_grpc_health_metadata simple_grpc_model_control
        simple_grpc_custom_args_client simple_grpc_keepalive_client simple_grpc_custom_repeat
        simple_grpc_sequence_sync_infer_client simple_grpc_sequence_stream_infer_client
        simple_grpc_aio_sequence_stream_infer_client grpc_explicit_int_content_client
        grpc_explicit_int8_content_client grpc_explicit_byte_content_client""",
}
"""The examples that need neither shared memory nor images, by the address they take."""
COMPRESSED = {
    "simple_http_infer_client": ("gzip", "deflate"),
    "simple_http_aio_infer_client": ("gzip", "deflate"),
}
NOT_ASKED = "not asked"
EXAMPLES = 100
"""Requests for each operation of a description."""


@dataclass(frozen=True, slots=True)
class Run:
    """One program: its name, its command, and the option by which it takes an address."""

    name: str
    command: tuple[str, ...]
    binding: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed` is the end of what the program said, where it failed."""

    name: str
    straight: str
    through: str
    failed: str

    @property
    def worse(self) -> bool:
        return self.straight in ("PASS", NOT_ASKED) and self.through != "PASS"


def examples(folder: Path) -> Iterator[Run]:
    for binding, names in SERVERS.items():
        for name in names.split():
            command = (sys.executable, str(folder / f"{name}.py"))
            yield Run(name, command, binding)
            for coding in COMPRESSED.get(name, ()):
                both = (
                    f"--request-compression-algorithm={coding}",
                    f"--response-compression-algorithm={coding}",
                )
                yield Run(f"{name} ({coding})", (*command, *both), binding)


def sequences(folder: Path) -> Iterator[Run]:
    for binding, names in SERVERS.items():
        for name in names.split():
            if "_sequence_" in name:
                yield Run(name, (sys.executable, str(folder / f"{name}.py")), binding)


def outcome_of_all(run: Run, address: str, at_once: int) -> tuple[str, str]:
    """PASS where all of so many at a time pass; else how many do, and what the first other one said last."""
    if at_once == 1:
        return outcome_of(run, address)
    # As if they ran elsewhere: so many clients that start at once would starve the servers of a small machine.
    runs = [
        replace(run, command=("nice", "-n", "19", *run.command, "-o", str(number)))
        for number in range(at_once)
    ]
    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(lambda one: outcome_of(one, address), runs))
    failed = [outcome for outcome in outcomes if outcome[0] != "PASS"]
    if not failed:
        return "PASS", outcomes[0][1]
    return f"{at_once - len(failed)} of {at_once} PASS", f"{failed[0][0]}: {failed[0][1]}"


def outcome_of(run: Run, address: str) -> tuple[str, str]:
    """PASS, or how it failed, and what it said last."""
    try:
        done = subprocess.run(
            [*run.command, "-u", address], capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S} s", ""
    said = (done.stdout + done.stderr).strip().splitlines()
    last = said[-1] if said else ""
    if done.returncode:
        return f"exit {done.returncode}", last
    # Some exit with 0 although they say that a check failed.
    passed = any(line.startswith("PASS") for line in said) or "health_metadata" in run.name
    return ("PASS" if passed else "no PASS"), last


def described(description: Path, models: list[str], http: str) -> Outcome:
    """Whether a gateway fails over nothing that a description of the protocol allows, or forbids."""
    status, said = schemathesis.faults(
        description.resolve(),
        f"http://{http}",
        names={"model_name": models, "model_version": ["1"]},
        examples=EXAMPLES,
    )
    name = f"schemathesis {description.name}"
    return Outcome(name, NOT_ASKED, "FAIL" if status else "PASS", said if status else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--dataplane", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--tritons", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.examples is None and given.dataplane is None:
        parser.error("give --examples, --dataplane or both")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        models = sorted(p.name for p in given.models.iterdir() if p.is_dir())
        if given.at_once > 1:
            models = ["simple_sequence"]
        servers = [TritonServer(given.models, load=models) for _ in range(given.tritons)]
        try:
            for server in servers:
                server.start()
            endpoints = "".join(
                ENDPOINT.format(number=number, port=server.grpc_port) for number, server in enumerate(servers)
            )
            config = CONFIG.format(replicas=given.replicas, endpoints=endpoints)
            with running_gateway(config, folder / "gw") as gateway:
                gateway.wait_up(*(f"t{number}" for number in range(given.tritons)))
                server = servers[0]
                straight = {"http": f"127.0.0.1:{server.http_port}", "grpc": f"127.0.0.1:{server.grpc_port}"}
                through = {"http": gateway.http, "grpc": gateway.grpc}
                suite = sequences if given.at_once > 1 else examples
                runs = list(suite(given.examples)) if given.examples else []
                for run in track(runs, disable=given.json or not sys.stdout.isatty()):
                    here, _ = outcome_of_all(run, straight[run.binding], given.at_once)
                    there, said = outcome_of_all(run, through[run.binding], given.at_once)
                    outcomes.append(Outcome(run.name, here, there, "" if there == "PASS" else said))
                if given.dataplane:
                    outcomes.append(described(given.dataplane, models, gateway.http))
        finally:
            for server in servers:
                server.stop()
    if given.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        table = Table("suite", "straight", "through the gateway", "what it said")
        for outcome in outcomes:
            table.add_row(*asdict(outcome).values(), style="red" if outcome.worse else None)
        Console().print(table)
    return 1 if any(outcome.worse for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
