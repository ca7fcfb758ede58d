"""`tidegate check` and how the command line ends."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gateway.cli import check as check_module
from gateway.cli.main import app, run
from gateway.core.config.load import kinds_in, read
from tests.support.released import shop_of
from tests.support.tflite_models import difference, golden_file, logarithm
from tests.unit.config_support import ALL_KINDS, DATA, GOOD, changed

FILE = str(DATA / "good.yaml")


def _write(folder: Path, text: str) -> str:
    path = folder / "t.yaml"
    path.write_text(text)
    for name in ("digits.onnx", "digits.tflite"):
        (folder / name).touch()
    return str(path)


def test_a_good_file_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", FILE]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("ok: 2 endpoints, 2 models, 3 privacy classes, 2 policies; revision ")
    assert len(out.splitlines()) == 1


def test_the_matrix_has_the_gateways_own_place_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", FILE, "--matrix"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert table == [
        ["class", "gw-plant-7", "(gateway)", "gpu-east", "rack"],
        ["public", "yes", "yes", "yes"],
        ["internal", "yes", "yes", "yes"],
        ["personal", "yes", "no", "yes"],
    ]


def test_the_matrix_on_a_terminal_is_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(check_module.sys, "stdout", screen)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["check", FILE, "--matrix"]) == 0
    row = next(line for line in screen.getvalue().splitlines() if "personal" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["personal", "yes", "no", "yes"]


def test_problems_go_to_stderr_line_by_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path, changed("weight: 3", "wieght: 3").replace("currency: EUR", "currency: eur"))
    assert run(["check", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"{path}:2:11: currency must be three capital letters such as USD, not 'eur'",
        f"{path}:29:59: unknown key 'wieght', did you mean 'weight'?",
    ]


def test_json_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", FILE, "--matrix", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["ok"] is True
    assert outcome["warnings"] == []
    assert outcome["matrix"]["personal"] == {"gateway": True, "endpoints": {"gpu-east": False, "rack": True}}
    path = _write(tmp_path, changed("weight: 3", "weight: x"))
    assert run(["check", path, "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "problems": [
            {"file": path, "line": 29, "col": 67, "message": "weight must be a whole number, not 'x'"}
        ],
    }


def test_warnings_name_what_can_never_happen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = changed("location: {tier: site, region: eu-west-1, site: plant-7}", "location: {tier: cloud}")
    text = text.replace('models: ["digits"]', 'models: ["digit"]')
    path = _write(tmp_path, text)
    assert run(["check", path]) == 0
    own = "forbids the gateway's own place (tier cloud)"
    assert capsys.readouterr().err.splitlines() == [
        f"{path}:26:14: warning: model 'digits' can never pass this gateway: its class 'internal' {own}",
        f"{path}:34:14: warning: model 'faces' can never pass this gateway: its class 'personal' {own}",
        f"{path}:42:7: warning: class 'internal' can never pass this gateway: it {own}",
        f"{path}:46:15: warning: class 'personal' can never pass this gateway: it {own}",
        f"{path}:49:21: warning: policy 'interactive' never applies: no model has a name that models matches",
    ]


def test_a_variant_that_its_class_forbids_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = changed(
        "    privacy: personal\n    variants:\n",
        "    privacy: personal\n    variants:\n      - endpoint: gpu-east\n",
    )
    path = _write(tmp_path, text)
    assert run(["check", path, "--json"]) == 0
    out, err = capsys.readouterr()
    message = (
        "'gpu-east' will never answer 'faces': class 'personal' forbids its place "
        "(tier cloud, region eu-west-1)"
    )
    assert err == f"{path}:36:19: warning: {message}\n"
    assert json.loads(out)["warnings"] == [{"file": path, "line": 36, "col": 19, "message": message}]


GROUPED = GOOD.replace(
    "models:\n",
    "  - {name: cams, kind: edge, select: {site: [plant-7, plant-9]}}\n"
    "  - {name: pool, kind: pool, runtime: openvino, resources: {CPU: 1, TPU: 2}, location: {tier: cloud}}\n"
    "models:\n",
    1,
).replace(
    "    personal: {",
    "    own: {allow: [{tier: [device, site], same: [device]}, {tier: site}]}\n"
    "    nine: {allow: [{tier: [device], site: plant-9}, {tier: site}]}\n"
    "    ten: {allow: [{tier: [device], site: plant-10}, {tier: site}]}\n"
    "    personal: {",
)


FILED = """\
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints: [{name: cams, kind: edge}]
models:
  - name: id2d
    variants:
      - {endpoint: cams, artifact: a.tflite}
privacy: {default: plant, classes: {plant: {allow: [{tier: [device, site]}]}}}
policies: [{name: default, match: {}, weights: {latency: 1}}]
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_released_and_not_what_the_file_names_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tflite").write_bytes(difference())
    path, state = _write(tmp_path, FILED), tmp_path / "state"

    def warned() -> list[str]:
        assert run(["check", path, "--state-dir", str(state)]) == 0
        return capsys.readouterr().err.splitlines()

    async def released(push: bool) -> None:
        config = read(Path(path), kinds_in("gateway.backends"), {}).config
        async with shop_of(config, state) as shop:
            if push:
                a = np.array([1, 2], np.float32)
                vectors = golden_file(tmp_path, [({"a": a, "b": a}, {"c": a - a})], 0.1)
                files = {"tflite": ("tflite", difference(), vectors)}
                await shop.releases.add("id2d", files, source="an update")
                await shop.releases.judged("id2d", "2", True)
                await shop.releases.stand("id2d", "2")

    assert warned() == []
    assert not state.exists()
    asyncio.run(released(False))
    assert warned() == []
    (tmp_path / "a.tflite").write_bytes(logarithm())
    changed = "model 'id2d': a.tflite has changed since it was released as version 1, and is not taken"
    assert warned() == [
        f"{path}:7:36: warning: {changed}: push it as a new version, or put the old file back"
    ]
    (tmp_path / "a.tflite").write_bytes(difference())
    asyncio.run(released(True))
    stands = "version 2 stands: the files that the configuration names are version 1"
    assert warned() == [f"{path}:5:11: warning: model 'id2d': {stands}"]
    (state / "tidegate.db").write_bytes(b"no database")
    (told,) = warned()
    assert told.startswith(f"{path}:4:1: warning: what is released is not compared: ")


@pytest.fixture
def all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.config.load.kinds_in", lambda package: ALL_KINDS)


@pytest.mark.usefixtures("all_kinds")
def test_the_matrix_says_which_devices_of_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path, GROUPED)
    assert run(["check", path, "--matrix"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    column = lines[0].index("cams")
    found = {line.split()[0]: line[column : lines[0].index("pool")].strip() for line in lines[1:]}
    assert found == {
        "public": "yes",
        "internal": "yes",
        "own": "same device",
        "nine": "site plant-9",
        "ten": "no",
        "personal": "same site",
    }
    assert run(["check", path, "--matrix", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["matrix"]["nine"] == {
        "gateway": True,
        "endpoints": {"gpu-east": False, "rack": True, "pool": False},
        "groups": {"cams": "site plant-9"},
    }


@pytest.mark.usefixtures("all_kinds")
def test_what_groups_and_pools_can_never_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GROUPED.replace(
        "    privacy: personal\n    variants:\n",
        "    privacy: ten\n    variants:\n      - {endpoint: cams, artifact: digits.onnx}\n",
    )
    path = _write(tmp_path, text)
    assert run(["check", path]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"{path}:25:74: warning: runtime openvino cannot use TPU: the replicas of 'pool' will hold it and"
        " compute on the CPU",
        f"{path}:38:20: warning: 'cams' will never answer 'faces': class 'ten' allows none of its devices",
    ]


def test_artifacts_that_the_devices_of_two_groups_cannot_both_run_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace(
        "models:\n",
        "  - {name: cams, kind: edge, select: {site: plant-7}}\n  - {name: all, kind: edge}\nmodels:\n",
        1,
    ).replace(
        "    privacy: personal\n    variants:\n",
        "    privacy: personal\n    variants:\n      - {endpoint: cams, artifact: digits.onnx}\n"
        "      - {endpoint: all, artifact: digits.tflite}\n",
    )
    path = _write(tmp_path, text)
    assert run(["check", path]) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    line = 1 + text[: text.index("endpoint: all")].count("\n")
    assert warning == (
        f"{path}:{line}:20: warning: devices in both cams and all can run only one of their files as 'faces':"
        " the one for cams wins, because it stands first"
    )


PEERS = "  peers:\n    - {name: gw-9, token: 0123456789abcdef0123456789abcdef, site: plant-9}\n  limits:"


def test_a_place_that_only_a_peers_data_may_reach_is_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data of plant-9 may go to its server through this gateway, which is of no site."""
    text = changed("location: {tier: site, region: eu-west-1, site: plant-7}", "location: {tier: cloud}")
    text = text.replace("      site: plant-7", "      site: plant-9")
    text = text.replace("personal: {allow: [", "personal: {allow: [{tier: cloud}, ")
    text = text.replace("default: internal", "default: personal")
    never = "'rack' will never answer 'faces': class 'personal' forbids its place"
    assert run(["check", _write(tmp_path, text)]) == 0
    assert never in capsys.readouterr().err
    assert run(["check", _write(tmp_path, text.replace("  limits:", PEERS))]) == 0
    assert never not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tidegate: Missing command; try 'tidegate --help'"),
        (["chek"], "tidegate: No such command 'chek'. Did you mean 'check'?; try 'tidegate --help'"),
        (["check"], "tidegate check: Missing argument 'FILE'; try 'tidegate check --help'"),
        (["check", "a", "--bogus"], "tidegate check: No such option: --bogus; try 'tidegate check --help'"),
    ],
)  # fmt: skip
def test_usage_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr() == ("", message + "\n")


def test_what_check_does_not_serve_yet_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["check", FILE, "--live"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "tidegate: check --live is not served by this version: leave it out\n"


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.core.config.load.read", interrupted)
    assert run(["check", FILE]) == 130
    assert capsys.readouterr().err == ""


def _tidegate(*arguments: str, code: str = "from gateway.cli.main import main; main()") -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_a_reader_that_has_gone_is_no_traceback(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD)
    process = subprocess.Popen(
        _tidegate("check", path, "--matrix", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert errors == b""


def test_the_command_line_loads_nothing_heavy_before_it_is_needed() -> None:
    heavy = ["ray", "grpc", "pydantic", "ruamel", "fastapi", "numpy", "httpx", "rich"]
    code = f"import sys, gateway.cli.main; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run(_tidegate(code=code), capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tidegate {version('tidegate')}\n"


def test_every_command_is_registered_under_its_name() -> None:
    assert {command.name for command in app.registered_commands} >= {"check", "up", "route", "demo"}
