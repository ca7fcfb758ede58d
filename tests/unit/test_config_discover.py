"""`discover` in the file: what may be written, and what `tidegate check` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.backends.oip import OipConfig
from gateway.backends.triton import TritonConfig
from gateway.cli import bench
from gateway.cli.advice import warnings_of
from gateway.cli.common import BACKENDS
from gateway.cli.main import run
from gateway.core.config import Location
from gateway.core.config.load import kinds_in, parse_config
from gateway.core.place import Tier
from tests.unit.config_support import DATA, GOOD, changed, parsed, problems

LABELS = "labels: {group: gpu}"
MODELS = GOOD[GOOD.index("models:\n") : GOOD.index("privacy:\n  default")]
FILE = """\
version: 1
gateway: {name: gw, location: {tier: cloud, region: eu}}
endpoints:
  - {name: a, kind: triton, url: "grpc://h:1", location: {tier: cloud, region: eu}, discover: {privacy: public}}
  - {name: b, kind: oip, url: "grpc://h:2", location: {tier: cloud, region: us}, discover: {privacy: eu}}
privacy:
  default: public
  classes: {public: {allow: [{tier: cloud}]}, eu: {allow: [{tier: cloud, region: eu}]}}
policies:
  - {name: letters, match: {models: ["x-*"]}, weights: {latency: 1}}
  - {name: default, match: {}, weights: {latency: 1}}
"""


def test_an_endpoint_says_in_which_class_it_is_discovered():
    config = parsed(changed(LABELS, "discover: {privacy: public}"))
    assert [endpoint.discovers for endpoint in config.endpoints] == ["public", None]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("discover: {}", "13:15: key 'privacy' is missing from endpoints[0].discover: add it"),
        (
            "discover: {privacy: publik}",
            "13:25: privacy class 'publik' is not declared, did you mean 'public'?",
        ),
        ("discover: {privacy: null}", "13:25: privacy must be a text, not null"),
        ("discover: public", "13:15: discover must be a mapping of keys to values, not 'public'"),
        ("discover: {privacy: public, models: [a]}", "13:33: unknown key 'models'; known here: privacy"),
        ("discover: true", "13:15: discover must be a mapping of keys to values, not true"),
    ],
)
def test_what_is_wrong_with_it_is_told_at_its_place(written: str, expected: str):
    assert problems(changed(LABELS, written)) == [f"t.yaml:{expected}"]


@pytest.mark.parametrize("kind", ["pool", "edge", "gateway"])
def test_only_servers_with_models_of_their_own_can_be_discovered(kind: str):
    text = FILE.replace("kind: oip", f"kind: {kind}")
    with pytest.raises(Exception, match="unknown key 'discover'"):
        parse_config(text, "t.yaml", kinds_in(BACKENDS), {}, DATA)


@pytest.mark.parametrize("models", ["models: []\n", ""])
def test_models_may_be_empty_or_left_out_beside_it(models: str):
    text = GOOD.replace(MODELS, models)
    without = (
        "models must not be empty: write at least one entry"
        if models
        else "key 'models' is missing from the file: add it"
    )
    at = "24:9" if models else "1:1"
    assert problems(text) == [f"t.yaml:{at}: {without}, or give an endpoint discover: {{privacy: CLASS}}"]
    assert parsed(text.replace(LABELS, "discover: {privacy: public}")).models == ()


def test_a_misspelt_models_is_one_mistake():
    found = problems(changed("models:\n", "modles:\n"))
    assert found == ["t.yaml:24:1: unknown key 'modles', did you mean 'models'?"]


def test_another_class_makes_no_other_server_of_it():
    common = {"name": "t", "url": "grpc://h:1", "location": Location(tier=Tier.CLOUD)}
    for kind, config in (("triton", TritonConfig), ("oip", OipConfig)):
        plain = config.model_validate({**common, "kind": kind})
        assert plain.identity == plain.model_copy(update={"discover": {"privacy": "x"}}).identity


def test_check_tells_what_is_discovered_and_what_never_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "t.yaml"
    path.write_text(FILE)
    assert run(["check", str(path), "--matrix"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("ok: 2 endpoints, 0 models, 2 privacy classes, 2 policies; revision ")
    assert lines[1:3] == [
        "a also offers every model it has that is not named here, in class public",
        "b also offers every model it has that is not named here, in class eu",
    ]
    assert [line.split() for line in lines[3:]] == [
        ["class", "gw", "(gateway)", "a", "b"],
        ["public", "yes", "yes", "yes"],
        ["eu", "yes", "yes", "no"],
    ]
    (warning,) = err.splitlines()
    assert "5:102: " in warning
    assert warning.endswith(
        "'b' will never answer what is discovered there: class 'eu' forbids its place (tier cloud, region us)"
    )
    assert run(["check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["discover"] == {"a": "public", "b": "eu"}


def test_a_class_that_never_passes_the_gateway_is_told():
    text = FILE.replace(
        "location: {tier: cloud, region: eu}}\nendpoints", "location: {tier: cloud, region: us}}\nendpoints"
    )
    found = warnings_of(parse_config(text, "t.yaml", kinds_in(BACKENDS), {}, DATA))
    assert any(
        w.loc == ("endpoints", 1, "discover", "privacy")
        and w.message.startswith("what 'b' has can never pass")
        for w in found
    )


def test_a_model_that_the_file_does_not_name_is_measured_where_models_are_discovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[object] = []

    async def measure_all(
        config: object, state_dir: object, url: str, found: object, wanted: object, request: object
    ):
        asked.extend((found, wanted))
        return []

    monkeypatch.setattr(bench, "_measure_all", measure_all)
    path = tmp_path / "t.yaml"
    path.write_text(FILE.replace("discover: {privacy: eu}", "discover: {privacy: public}"))
    assert run(["bench", "new", "-f", str(path), "--state-dir", str(tmp_path), "--endpoints", "b"]) == 0
    found, wanted = asked
    assert (found.name, found.privacy) == ("new", "public")
    assert [variant.endpoint for variant in wanted] == ["b"]
    path.write_text(FILE)
    with pytest.raises(SystemExit, match="2"):  # in two classes, so offered by neither
        run(["bench", "new", "-f", str(path), "--state-dir", str(tmp_path)])
