"""Updates in the file: what is refused, what is warned of, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.advice import warnings_of
from gateway.cli.common import read_checked
from gateway.core.config.problems import ConfigError

ARTIFACT = "digits.tflite"
FILE = """\
version: 1
gateway: {name: gw, location: {tier: site, site: plant-7}}
endpoints:
  - {name: cams, kind: edge, select: {site: [plant-7]}}
  - {name: rack, kind: triton, url: "grpc://127.0.0.1:1", location: {tier: site, site: plant-7}}
  - {name: cloud, kind: triton, url: "grpc://127.0.0.1:2", location: {tier: cloud, region: eu}}
models:
  - name: digits
    variants: [{endpoint: cams, artifact: digits.tflite}, {endpoint: rack}, {endpoint: cloud, version: "1"}]
privacy:
  default: personal
  classes:
    personal: {allow: [{tier: [device, site], same: [site]}]}
policies:
  - {name: all, match: {}, weights: {latency: 1}}
updates:
  - model: digits
    samples: {collect: hard, labels: {file: labels.csv}}
    train: {entrypoint: "gateway.cli.schema:text", location: {tier: site, site: plant-7}, data: base}
    gate: {data: held.npz}
    rollout: {waves: ["1", "10%", 100%]}
"""
TRAIN = 'train: {entrypoint: "gateway.cli.schema:text", location: {tier: site, site: plant-7}, data: base}'


def _written(folder: Path, text: str) -> Path:
    for name in (ARTIFACT, "labels.csv", "held.npz"):
        (folder / name).touch()
    path = folder / "t.yaml"
    path.write_text(text)
    return path


def _changed(old: str, new: str) -> str:
    assert FILE.count(old) == 1
    return FILE.replace(old, new)


def _problems(folder: Path, old: str, new: str) -> list[str]:
    path = _written(folder, _changed(old, new))
    with pytest.raises(ConfigError) as caught:
        read_checked(path)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("    gate: {data: held.npz}", "    drift: {detector: ks, threshold: 1.5}",
         "20:38: no drift would ever begin: ks gives at most 1, and threshold is 1.5"),
        ("    gate: {data: held.npz}", "    drift: {detector: adwin, threshold: 1}",
         "20:41: no drift would ever begin: adwin gives at most 0.5, and threshold is 1"),
        ('["1", "10%", 100%]}', '["1", "10%", 100%], halt: {latency_p95_ratio: 1}}',
         "21:68: latency_p95_ratio must be greater than 1, not 1"),
        ("    gate: {data: held.npz}", "    drift: {window_s: 172801}",
         "20:23: window_s must be at most 172800, not 172801"),
    ],
)  # fmt: skip
def test_what_could_never_be_met_or_always_would_is_refused(tmp_path: Path, old: str, new: str, line: str):
    assert _problems(tmp_path, old, new) == [line]


def test_a_threshold_that_a_detector_can_just_give_is_taken(tmp_path: Path):
    drift = "    drift: {detector: ks, threshold: 1, window_s: 172800}"
    read_checked(_written(tmp_path, _changed("    gate: {data: held.npz}", drift)))


def _warnings(folder: Path, text: str) -> list[str]:
    loaded = read_checked(_written(folder, text))
    found = [str(loaded.at(f)).removeprefix(f"{folder / 't.yaml'}:") for f in warnings_of(loaded.config)]
    return [line for line in found if "will never answer" not in line]


def test_the_file_is_good_and_warns_of_nothing(tmp_path: Path) -> None:
    assert _warnings(tmp_path, FILE) == []
    config = read_checked(tmp_path / "t.yaml").config
    assert config.updates[0].gate.data == str(tmp_path / "held.npz")
    assert config.updates[0].rollout.waves == ("1", "10%", "100%")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (TRAIN, 'drift: {signal: "output.confidence"}',
         "18:24: samples are kept to be trained on: add train, or leave samples out"),
        ("collect: hard, labels: {file: labels.csv}}\n    train: {entrypoint: \"gateway.cli.schema:text\", "
         "location: {tier: site, site: plant-7}, data: base}",
         "collect: none}\n    train: {entrypoint: \"gateway.cli.schema:text\", location: {tier: site, site: plant-7}}",
         "19:12: there is nothing to train on: name data, or let samples be collected (samples.collect: hard)"),
        ("{endpoint: cams, artifact: digits.tflite}, ", "",
         "19:12: nothing would run what is trained: no variant of 'digits' is on a device group, a pool or a "
         "Triton with a repository without a version of its own"),
        ("{file: labels.csv}", "{teacher: cams}",
         "18:48: 'cams' is a device group, which runs the model that is to be taught: name an endpoint of another "
         "kind"),
        ("{file: labels.csv}", "{teacher: rak}",
         "18:48: endpoint of a variant of this model 'rak' is not declared, did you mean 'rack'?"),
        ("{file: labels.csv}", "{file: labels.csv, teacher: rack}",
         "18:38: labels needs either file or teacher"),
        ("site: plant-7}, data: base", "region: eu}, data: base",
         "19:62: a place on tier site must name its site: add site: NAME"),
        ("{data: held.npz}", "{data: lost.npz}",
         "20:18: data 'lost.npz': there is no such file: give its path, relative to this file"),
        ("gateway.cli.schema:text", "gateway.cli.schema",
         "19:25: entrypoint must be MODULE:FUNCTION, such as plant7.train:run, not 'gateway.cli.schema'"),
        ('"10%", 100%', '"0%", 100%',
         "21:28: each of waves must be a number of devices, such as 1, or a share of them, such as 10%, not '0%'"),
        ('"10%", 100%', '"10%"', "21:22: the last wave must be 100%, all that can take the release"),
        ('"10%", 100%', '"10%", "9%", 100%', "21:22: each wave must be larger than the one before"),
        ("version: 1\n", "version: 1\nartifacts: https://x/y\n",
         "2:12: artifacts is no store's URL: write file:///PATH or s3://BUCKET/PREFIX"),
        ("version: 1\n", "version: 1\nartifacts: file://x/y\n",
         "2:12: artifacts is no store's URL: write file:///PATH or s3://BUCKET/PREFIX"),
        ("version: 1\n", "version: 1\nartifacts: s3://key:geheim@bucket\n",
         "2:12: artifacts must hold no credentials: use the environment's AWS_ACCESS_KEY_ID and the like"),
        # What privacy leaves nothing of.
        ("location: {tier: site, site: plant-7}}\nendpoints", "location: {tier: cloud}}\nendpoints",
         "17:12: nothing of 'digits' is ever counted here: its class 'personal' forbids the gateway's own place "
         "(tier cloud) to all of its data"),
        ("site: plant-7}, data: base", "site: plant-8}, data: base",
         "19:62: no sample of 'digits' may be trained on at tier site, site plant-8: class 'personal' forbids it to "
         "all of its data; train where the class allows, or on data alone"),
        ("tier: site, site: plant-7}, data: base", "tier: cloud, region: eu}, data: base",
         "19:62: no sample of 'digits' may be trained on at tier cloud, region eu: class 'personal' forbids it to "
         "all of its data; train where the class allows, or on data alone"),
        ("{file: labels.csv}", "{teacher: cloud}",
         "18:48: no sample of 'digits' may be shown to 'cloud': class 'personal' forbids its place (tier cloud, "
         "region eu)"),
    ],
)  # fmt: skip
def test_what_could_never_work_is_refused_where_it_stands(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert _problems(tmp_path, old, new) == [problem]


def test_a_device_of_the_training_place_is_an_origin_where_its_group_takes_it(tmp_path: Path) -> None:
    """`same: [device]` holds for data of that one device, which passes a gateway that the class allows."""
    text = FILE.replace(
        "personal: {allow: [{tier: [device, site], same: [site]}]}",
        "personal: {allow: [{tier: site}, {tier: device, same: [device]}]}",
    ).replace("{tier: site, site: plant-7}, data", "{tier: device, site: plant-7, device: cam-1}, data")
    assert [line.split(": ", 1)[1] for line in _warnings(tmp_path, text)] == [
        "no samples of 'digits' are kept from plant-7: its class forbids them the training place (tier device, "
        "site plant-7, device cam-1)"
    ]
    with pytest.raises(
        ConfigError, match="no sample of 'digits' may be trained on at tier device, site plant-9"
    ):
        read_checked(_written(tmp_path, text.replace("plant-7, device: cam-1", "plant-9, device: cam-1")))


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("select: {site: [plant-7]}", "select: {site: [plant-7, plant-8]}",
         "17:12: drift of 'digits' is not seen in what comes from plant-8: its class forbids this gateway's place "
         "to it"),
        ("select: {site: [plant-7]}", "select: {}",
         "17:12: drift of 'digits' is not seen in what comes from other sites: its class forbids this gateway's "
         "place to it"),
        (", labels: {file: labels.csv}", "",
         "18:14: samples of 'digits' are kept and none is ever labelled, so none is trained on: add labels"),
        ("{file: labels.csv}", "{file: later.csv}",
         "18:45: there is no file later.csv yet: no sample of 'digits' is trained on until there is"),
        ("gateway.cli.schema:text", "gateway.cli.schema:run",
         "19:25: entrypoint gateway.cli.schema:run: module gateway.cli.schema has no run"),
        ("gateway.cli.schema:text", "gateway.cli.scheme:text",
         "19:25: entrypoint gateway.cli.scheme:text: there is no module gateway.cli.scheme here; it must be "
         "importable where it runs"),
        ("gateway.cli.schema:text", "gateway.cli.schema.deeper:text",
         "19:25: entrypoint gateway.cli.schema.deeper:text: there is no module gateway.cli.schema.deeper here; it "
         "must be importable where it runs"),
    ],
)  # fmt: skip
def test_what_may_come_to_nothing_is_told(tmp_path: Path, old: str, new: str, warning: str) -> None:
    assert _warnings(tmp_path, _changed(old, new)) == [warning]


def test_a_pool_that_follows_is_no_teacher(tmp_path: Path) -> None:
    pool = "  - {name: rack, kind: pool, runtime: onnxruntime, location: {tier: site, site: plant-7}}"
    text = FILE.replace(
        '  - {name: rack, kind: triton, url: "grpc://127.0.0.1:1", location: {tier: site, site: plant-7}}',
        pool,
    ).replace("{file: labels.csv}", "{teacher: rack}")
    (tmp_path / "digits.onnx").touch()
    follows = text.replace("{endpoint: rack}", "{endpoint: rack, artifact: digits.onnx}")
    assert _warnings(tmp_path, follows) == [
        "18:48: 'rack' runs the releases of 'digits' itself, so the model would be its own teacher: give that "
        "variant a version, or name another"
    ]
    pinned = text.replace("{endpoint: rack}", '{endpoint: rack, artifact: digits.onnx, version: "7"}')
    assert _warnings(tmp_path, pinned) == []
