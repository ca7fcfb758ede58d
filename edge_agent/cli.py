"""The `tidegate-agent` command. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import edge_agent

if TYPE_CHECKING:
    from edge_agent.address import Address
    from edge_agent.agent import Ready
    from edge_agent.checks import Check
    from edge_agent.config import AgentConfig
    from edge_agent.delegates import DelegateSpec
    from edge_agent.ports import Models, Observer

TOKEN_VARIABLE = "TIDEGATE_ENROLMENT_TOKEN"

app = typer.Typer(
    name="tidegate-agent",
    help="Runs models on a device and answers for a Tidegate gateway.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Hub = Annotated[str, typer.Option(help="the hub's address; several, separated by commas, are tried in turn")]
State = Annotated[Path, typer.Option(help="the device's folder: credential, name, models")]
ConfigFile = Annotated[Path | None, typer.Option(help="agent.yaml")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def _fail(message: str, code: int) -> NoReturn:
    """One line on stderr, then exit: 1 for what failed, 2 for bad input."""
    print(f"tidegate-agent: {message}", file=sys.stderr)
    raise SystemExit(code)


@app.command()
def run(
    hub: Hub,
    state: State,
    token: Annotated[
        str,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="single-use enrolment token; needed once. Other users can read a command line, "
            "and not the environment",
        ),
    ] = "",
    config: ConfigFile = None,
    http: Annotated[str, typer.Option(help="OIP over HTTP on the device")] = "127.0.0.1:8090",
    grpc: Annotated[str, typer.Option(help="OIP over gRPC on the device")] = "127.0.0.1:8091",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line when ready")] = False,
) -> None:
    """Serve this device's models, here and to the gateway; prints `ready` once it does."""
    # grpc's own log is about sockets, and repeats what the agent says itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from edge_agent import checks
    from edge_agent.address import parse_hubs
    from edge_agent.state import DeviceState, StateError

    try:
        hubs = parse_hubs(hub)
    except ValueError as error:
        _fail(str(error), 2)
    at_http, at_grpc = _address(http, "--http"), _address(grpc, "--grpc")
    settings = _config(config)
    able = checks.runtime()
    if not able.ok:
        _fail(able.detail, 1)
    _log_to_stderr()
    try:
        with DeviceState(state) as folder:
            import asyncio

            from edge_agent.agent import AgentSettings, serve
            from edge_agent.link.client import EnrolmentRefused

            everything = AgentSettings(hubs, at_http, at_grpc, settings, token)
            try:
                asyncio.run(
                    serve(everything, folder, _models, lambda ready: _announce(ready, as_json=as_json))
                )
            except EnrolmentRefused as error:
                _fail(f"the hub refused to enrol this device: {error}", 1)
            except OSError as error:
                _fail(str(error), 1)
    except StateError as error:
        _fail(str(error), 1)


@app.command()
def probe(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Which delegates agent.yaml names, or TFLite's own, and what each runs here of a small model."""
    from edge_agent import checks

    settings = _config(config)
    able = checks.runtime()
    if not able.ok:
        _fail(able.detail, 1)
    from edge_agent.delegates import probe as probe_delegates

    found = probe_delegates(_delegates(settings))
    if as_json:
        print(json.dumps(found))
        return
    for entry in found:
        name = " ".join(str(part) for part in (entry["delegate"], entry["version"]) if part)
        if entry["kind"] == "builtin" and entry["available"]:
            print(f"{name}: runs the nodes that no other delegate takes")
        elif entry["available"]:
            print(f"{name}: takes {entry['nodes_taken']} of {entry['nodes']} nodes of a small model")
        else:
            print(f"{name}: not available. {entry['reason']}")


@app.command()
def doctor(
    state: State = Path("agent-state"),
    hub: Annotated[str, typer.Option(help="as for run; left out: not looked at")] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Look at everything that `run` needs; exit 1 when something is wrong."""
    from edge_agent import checks
    from edge_agent.address import parse_hubs

    try:
        hubs = parse_hubs(hub) if hub else ()
    except ValueError as error:
        _fail(str(error), 2)
    settings = _config(config)
    able = checks.runtime()
    found: list[Check] = [able, *checks.state(state), *checks.trust(state), checks.disk(state)]
    found += checks.hubs(hubs)
    if able.ok:
        found += checks.delegates(_delegates(settings))
    if as_json:
        print(json.dumps([check._asdict() for check in found]))
    else:
        for check in found:
            print(f"{'ok   ' if check.ok else 'WRONG'} {check.name}: {check.detail}")
    if not all(check.ok for check in found):
        raise SystemExit(1)


@app.command()
def infer(
    model: Annotated[str, typer.Argument(help="the model's name")],
    input: Annotated[str, typer.Option(help="a file with OIP's JSON request; - reads standard input")],
    version: Annotated[str, typer.Option(help="the model's version; left out: what serves")] = "",
    http: Annotated[str, typer.Option(help="the running agent's HTTP address")] = "127.0.0.1:8090",
    timeout_s: Annotated[float, typer.Option(help="longest wait for the answer")] = 60.0,
) -> None:
    """Ask the agent that runs on this device, and print its answer."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import quote

    address = _address(http, "--http")
    try:
        body = sys.stdin.buffer.read() if input == "-" else Path(input).read_bytes()
    except OSError as error:
        _fail(f"--input cannot be read: {error.strerror}", 2)
    if not 0 < timeout_s <= 86_400:
        _fail("--timeout-s takes a number above 0 and at most 86400", 2)
    path = f"/v2/models/{quote(model, safe='')}"
    if version:
        path += f"/versions/{quote(version, safe='')}"
    connection = HTTPConnection(address.host, address.port, timeout=timeout_s + 1)
    try:
        headers = {"content-type": "application/json", "tidegate-deadline-ms": f"{timeout_s * 1000:.3f}"}
        connection.request("POST", f"{path}/infer", body, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, HTTPException):
        _fail(f"no agent answers at {address}: start one with tidegate-agent run, or give its --http", 1)
    finally:
        connection.close()
    if response.status != 200:
        _fail(_error_of(answer) or f"HTTP {response.status}", 2 if response.status in (400, 404) else 1)
    print(answer.decode("utf-8"))


def _error_of(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _models(folder: Path, config: AgentConfig, observer: Observer) -> Models:
    """The device's models, as agent.yaml wants them run; what they keep is in a folder of their own."""
    from edge_agent.runtime import RuntimeSettings
    from edge_agent.state import MODELS
    from edge_agent.update import DeviceModels

    settings = RuntimeSettings(
        delegates=_delegates(config), threads=config.threads, memory_mb=config.limits.memory_mb
    )
    return DeviceModels(folder / MODELS, settings, observer)


def _delegates(config: AgentConfig) -> tuple[DelegateSpec, ...]:
    from edge_agent.config import Library
    from edge_agent.delegates import DelegateSpec

    return tuple(
        DelegateSpec("external", str(delegate.library), delegate.options)
        if isinstance(delegate, Library)
        else DelegateSpec(delegate)
        for delegate in config.delegates
    )


def _address(text: str, option: str) -> Address:
    from edge_agent.address import parse_address

    try:
        return parse_address(text, option)
    except ValueError as error:
        _fail(str(error), 2)


def _config(path: Path | None) -> AgentConfig:
    from edge_agent.config import AgentConfig, ConfigError, read_config

    try:
        return AgentConfig() if path is None else read_config(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def _announce(ready: Ready, *, as_json: bool) -> None:
    print(json.dumps(asdict(ready)) if as_json else "ready", flush=True)


def _log_to_stderr() -> None:
    logging.basicConfig(format="tidegate-agent: %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # What they make of signed metadata is said with the model.
    logging.getLogger("tuf").setLevel(logging.CRITICAL)
    logging.getLogger("securesystemslib").setLevel(logging.CRITICAL)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tidegate-agent {edge_agent.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit status; errors are on stderr by then. A command may
    also end by SystemExit."""
    try:
        status = app(args=arguments, prog_name="tidegate-agent", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "tidegate-agent")
        message = " ".join(error.format_message().split()).removesuffix(".")
        print(f"{command}: {message}; try '{command} --help'", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # The reader has gone, and the flush at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status if isinstance(status, int) else 0


def main() -> None:
    """Entry point of the `tidegate-agent` script."""
    sys.exit(execute(sys.argv[1:]))


if __name__ == "__main__":
    main()
