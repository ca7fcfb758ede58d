"""Every mistake with its file, line and column, and what to do about it."""

from __future__ import annotations

import pickle

import pytest

from gateway.core.config.load import parse_config
from gateway.core.config.problems import ConfigError, Problem
from tests.unit.config_support import ALL_KINDS, DATA, GOOD, changed, parsed, problems

PUBLIC = "public: {allow: [{tier: [device, site, regional, cloud]}]}"
RACK = "endpoint: rack\n        weight"

CASES = {
    "misspelt key": (
        ("idempotent: true", "idempotant: true"),
        "27:5: unknown key 'idempotant', did you mean 'idempotent'?",
    ),
    "unit left out of the key": (
        ("latency_p95_ms: 50", "latency_p95: 50"),
        "50:15: unknown key 'latency_p95', did you mean 'latency_p95_ms'?",
    ),
    "unit in the value": (
        ("latency_p95_ms: 50", 'latency_p95_ms: "50ms"'),
        "50:31: latency_p95_ms must be a number of milliseconds without a unit, not '50ms'",
    ),
    "other unit in the key": (
        ("latency_p95_ms: 50", "latency_p95_s: 0.05"),
        "50:15: unknown key 'latency_p95_s', did you mean 'latency_p95_ms'?",
    ),
    "quoted number": (
        ("latency_p95_ms: 50", "latency_p95_ms: '50'"),
        "50:31: latency_p95_ms must be a number, not a text: remove the quotes around 50",
    ),
    "unknown endpoint": (
        (RACK, "endpoint: rak\n        weight"),
        "30:19: endpoint 'rak' is not declared, did you mean 'rack'?",
    ),
    "duplicate key": (
        ("currency: EUR", "currency: EUR\ncurrency: USD"),
        "3:1: duplicate key 'currency': it is already set on line 2",
    ),
    "duplicate nested key": (
        ("weight: 3,", "weight: 3, weight: 4,"),
        "29:70: duplicate key 'weight': it is already set on line 29",
    ),
    "class that allows nothing": (
        (PUBLIC, "public: {allow: []}"),
        "40:21: class 'public' allows nothing: list at least one place, or remove the class",
    ),
    "rule that asks for nothing": (
        (PUBLIC, "public: {allow: [{}]}"),
        "40:22: an empty rule would allow every place: name at least its tiers",
    ),
    "rule that no place can meet": (
        (PUBLIC, "public: {allow: [{tier: [site, cloud], same: [device]}]}"),
        "40:22: this rule allows nothing: tier site, cloud has no device; add device to tier or drop same",
    ),
    "site asked of a cloud": (
        (PUBLIC, "public: {allow: [{tier: cloud, site: plant-7}]}"),
        "40:22: this rule allows nothing: tier cloud has no site; add site to tier or drop what asks for one",
    ),
    "class without anything": (
        ("personal: {allow: [{tier: [device, site], same: [site]}]}", "personal:"),
        "46:5: personal must be a mapping of keys to values, not null",
    ),
    "class name": (
        ("public:", "pub lic:"),
        "40:5: pub lic must begin with a letter or digit and hold only letters, digits, "
        "'.', '_' and '-', not 'pub lic'",
    ),
    "truth value of older YAML": (
        ("idempotent: true", "idempotent: yes"),
        "27:17: idempotent must be true or false, not 'yes'",
    ),
    "truth value for a number": (
        ("weight: 3", "weight: true"),
        "29:67: weight must be a whole number, not true",
    ),
    "broken number": (
        ("weight: 3", "weight: 3.5"),
        "29:67: weight must be a whole number, not 3.5",
    ),
    "negative": (("weight: 3", "weight: -3"), "29:67: weight must be at least 0, not -3"),
    "infinite": (
        ("per_request: 0.0001", "per_request: .inf"),
        "23:20: per_request must be a number, not inf",
    ),
    "too much": (("sample_ratio: 0.05", "sample_ratio: 5"), "65:17: sample_ratio must be at most 1, not 5"),
    "version as a truth value": (
        ("version: 1\n", "version: true\n"),
        "1:10: version must be 1, the version of this file format",
    ),
    "version as a fraction": (
        ("version: 1\n", "version: 1.0\n"),
        "1:10: version must be 1, the version of this file format",
    ),
    "number for a text": (
        ('version: "3"', "version: 3"),
        '29:54: version must be a text, not 3: write it in quotes, "3"',
    ),
    "version in words": (
        ('version: "3"', "version: latest"),
        "29:54: version must hold digits only, in quotes, such as \"3\", not 'latest'",
    ),
    "unknown kind": (
        ("kind: triton\n    url: grpc://rack", "kind: tritn\n    url: grpc://rack"),
        "17:11: unknown kind 'tritn', did you mean 'triton'?",
    ),
    "kind that is none": (
        ("kind: triton\n    url: grpc://rack", "kind: openai\n    url: grpc://rack"),
        "17:11: unknown kind 'openai'; known here: triton",
    ),
    "misspelt kind key": (
        ("kind: triton\n    url: grpc://rack", "knd: triton\n    url: grpc://rack"),
        "17:5: unknown key 'knd', did you mean 'kind'?",
    ),
    "missing key": (
        ("    url: grpc://rack.plant-7:8001\n", ""),
        "16:5: key 'url' is missing from endpoints[1]: add it",
    ),
    "key of a kind's nested model": (
        ("url: grpc://rack.plant-7:8001", "url: x\n    tls: {ca_fil: a}"),
        "19:11: unknown key 'ca_fil', did you mean 'ca_file'?",
    ),
    "endpoint that is no mapping": (
        ("endpoints:\n", "endpoints:\n  - rack\n"),
        "9:5: an endpoint must be a mapping of keys to values, not 'rack'",
    ),
    "misspelt tier": (
        ("tier: [device, site, regional, cloud]", "tier: [device, site, regional, clod]"),
        "40:54: each of tier must be 'device', 'site', 'regional' or 'cloud', not 'clod'",
    ),
    "site tier without site": (
        ("      site: plant-7\n", ""),
        "20:7: a place on tier site must name its site: add site: NAME",
    ),
    "device tier without device": (
        ("      tier: site\n", "      tier: device\n"),
        "20:7: a place on tier device must name its device: add device: NAME",
    ),
    "site of a cloud": (
        ("{tier: cloud, region: eu-west-1}", "{tier: cloud, site: plant-7}"),
        "12:35: a place on tier cloud has no site: remove it or use tier site",
    ),
    "device of a site": (
        ("      site: plant-7\n", "      site: plant-7\n      device: cam-1\n"),
        "22:15: a place on tier site has no device: remove it or use tier device",
    ),
    "two prices": (
        ("per_hour: 0.81,", "per_hour: 0.81, per_request: 1,"),
        "15:12: per_hour and per_request exclude each other: keep one",
    ),
    "no weight": (
        ("      latency: 1\n", "      latency: 0\n"),
        "57:7: at least one weight must be greater than 0",
    ),
    "hardware fact": (
        ("memory_gb: 24", "memory_gb: [24]"),
        "14:51: a hardware fact must be a text or a number",
    ),
    "same name twice": (
        ("name: faces", "name: digits"),
        "33:11: another model is already named 'digits': rename one",
    ),
    "equal variants": (
        (
            "      - endpoint: rack\nprivacy",
            "      - endpoint: rack\n      - {endpoint: rack, model: faces}\nprivacy",
        ),
        "37:9: this variant equals an earlier one: remove it and add up the weights",
    ),
    "unknown class of a model": (
        ("privacy: personal", "privacy: persnal"),
        "34:14: privacy class 'persnal' is not declared, did you mean 'personal'?",
    ),
    "unknown default class": (
        ("default: internal", "default: zz"),
        "38:12: privacy class 'zz' is not declared; known here: internal, personal, public",
    ),
    "last policy matches too little": (
        ("    match: {}\n", "    match: {models: [digits]}\n"),
        "55:12: the last policy must match everything: end with one that has match: {}",
    ),
    "unreachable policies": (
        ('match: {models: ["digits"], ', "match: {"),
        "49:12: policy 'interactive' matches everything, so no later one is reached: move it to the end",
    ),
    "empty globs": (
        ('models: ["digits"]', "models: []"),
        "49:21: models must not be empty: write at least one entry",
    ),
    "broken glob": (
        ('["digits"]', '["dig[its"]'),
        "49:22: 'dig[its' has a '[' that is not closed: write [abc] or [[] for itself",
    ),
    "misspelt outcome": (
        ("on_no_candidate: reject", "on_no_candidate: rejct"),
        "58:22: on_no_candidate must be 'reject', not 'rejct'",
    ),
    "outcome of another shape": (
        ("on_no_candidate: reject", "on_no_candidate: [cost]"),
        "58:22: must be reject or {relax: [...]} with cost, latency or quality",
    ),
    "privacy relaxed": (
        ("relax: [cost, latency]", "relax: [cost, privacy]"),
        "53:37: each of relax must be 'cost', 'latency' or 'quality', not 'privacy'",
    ),
    "receiver without a scheme": (
        ("http://127.0.0.1:4318", "127.0.0.1:4318"),
        "64:18: otlp_endpoint is not the base URL of an OTLP/HTTP receiver such as http://127.0.0.1:4318",
    ),
    "receiver with a query": (
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318?token=x"),
        "64:18: otlp_endpoint is not the base URL of an OTLP/HTTP receiver such as http://127.0.0.1:4318",
    ),
    "receiver with credentials": (
        ("http://127.0.0.1:4318", "http://me:hunter2@127.0.0.1:4318"),
        "64:18: otlp_endpoint must hold no credentials: use OTEL_EXPORTER_OTLP_HEADERS",
    ),
    "currency": (
        ("currency: EUR", "currency: euro"),
        "2:11: currency must be three capital letters such as USD, not 'euro'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_mistake_is_one_problem_at_its_place(name: str) -> None:
    (old, new), expected = CASES[name]
    assert problems(changed(old, new)) == [f"t.yaml:{expected}"]


def test_all_mistakes_are_reported_together_in_the_files_order() -> None:
    text = GOOD
    for old, new in (
        ("weight: 3", "weight: x"),
        ("currency: EUR", "curency: EUR"),
        (RACK, "endpoint: rak\n        weight"),
        ("default: internal", "default: intern"),
        ("kind: triton\n    url: grpc://rack", "kind: oip\n    url: grpc://rack"),
        ("sample_ratio: 0.05", "sample_ratio: [1]"),
        ("store: sqlite", "store: sqlite\nstore: x"),
        ("      latency: 1\n", "      latency: 0\n"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = problems(text)
    assert [int(line.split(":")[1]) for line in found] == [2, 17, 29, 30, 38, 57, 63, 66]


def test_a_section_without_a_value_is_reported_at_its_key() -> None:
    text = GOOD[: GOOD.index("models:\n")] + "models:\n" + GOOD[GOOD.index("privacy:\n  default") :]
    assert problems(text) == ["t.yaml:24:1: models must be a list, not null"]


def test_a_name_that_is_missing_starts_no_hunt_for_it() -> None:
    found = problems(changed("  - name: rack\n    kind", "  - nme: rack\n    kind"))
    assert found == ["t.yaml:16:5: unknown key 'nme', did you mean 'name'?"]


def test_an_error_travels_between_processes_whole() -> None:
    error = ConfigError([Problem("b", 2, 1, "y"), Problem("b", 1, 9, "x"), Problem("b", 1, 9, "x")])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "b:1:9: x\nb:2:1: y"
    assert again.problems == error.problems


def test_the_contracts_full_sample_is_refused_key_by_key() -> None:
    text = (DATA / "contract.yaml").read_text(encoding="utf-8")
    found = problems(text, kinds=ALL_KINDS)
    assert all(line.endswith("not served by this version") for line in found)
    names = [line.split(": ", 1)[1].split(" is not served")[0] for line in found]
    assert names == [
        "endpoints.power",
        "endpoints.price.energy_per_kwh",
        "policies.weights.energy",
        "policies.hedge",
        "policies.cascade",
        "policies.shadow",
    ]
    lines = text.splitlines()
    for line in found:
        _, row, col, message = line.split(":", 3)
        at = lines[int(row) - 1][int(col) - 1 :]
        key = message.split(" is not")[0].strip().rpartition(".")[2]
        assert at.startswith(key), line


TOKEN = "t" * 32


def _peers(*peers: str) -> tuple[str, str]:
    lines = "".join(f"    - {peer}\n" for peer in peers)
    return "  limits:", f"  peers:\n{lines}  limits:"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_peers("{name: gw-b, token: short}"), "7:27: token must be at least 32 characters long"),
        (_peers(f"{{name: gw-b, token: {TOKEN}}}", f"{{name: gw-b, token: u{TOKEN}}}"),
         "8:14: another peer is already named 'gw-b': rename one"),
        (_peers(f"{{name: gw-b, token: {TOKEN}}}", f"{{name: gw-c, token: {TOKEN}}}"),
         "8:27: another peer already has this token: give each its own"),
        (_peers(f"{{name: gw-plant-7, token: {TOKEN}}}"),
         "7:14: 'gw-plant-7' is this gateway's own name: a peer is another gateway"),
        (_peers("{name: gw-b}"), "7:7: key 'token' is missing from gateway.peers[0]: add it"),
    ],
)  # fmt: skip
def test_peers_are_told_apart(change: tuple[str, str], expected: str) -> None:
    found = problems(changed(*change))
    assert found == [f"t.yaml:{expected}"]
    assert TOKEN not in found[0]


def test_a_peers_token_is_shown_by_nobody() -> None:
    good = parsed(changed(*_peers(f"{{name: gw-b, token: {TOKEN}, site: plant-9}}")))
    assert good.gateway.peers[0].site == "plant-9"
    assert TOKEN not in repr(good)


def test_no_endpoint_has_the_gateways_own_name() -> None:
    text = changed("name: gw-plant-7", "name: rack")
    assert problems(text) == [
        "t.yaml:16:11: 'rack' is this gateway's own name: an endpoint named so would be taken for a way back"
        " to it; rename one"
    ]


GROUPED = GOOD.replace("models:\n", "  - {name: cams, kind: edge}\nmodels:\n", 1).replace(
    "      - endpoint: rack\n        weight: 1\n",
    "      - {endpoint: cams, artifact: digits.tflite, batching: {max_size: 8, delay_ms: 2}}\n"
    "      - endpoint: rack\n        weight: 1\n",
)
"""The good file with a device group at line 24 and its variant at line 31."""


def test_a_variant_on_a_group_has_an_artifact() -> None:
    config = parse_config(GROUPED, "t.yaml", ALL_KINDS, {}, DATA)
    assert config.models[0].variants[1].batching is not None
    assert config.endpoints[2].place is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{endpoint: cams, artifact: digits.tflite, batching: {max_size: 8, delay_ms: 2}}", "{endpoint: cams}",
         "31:9: 'cams' is a device group and runs what it is given: add artifact: FILE"),
        ("artifact: digits.tflite, batching", "batching",
         "31:9: 'cams' is a device group and runs what it is given: add artifact: FILE\n"
         "t.yaml:31:36: batching is for a variant with an artifact: an endpoint that has its own models batches"
         " itself"),
        ('version: "3", weight', 'version: "3", artifact: digits.onnx, weight',
         "30:69: 'gpu-east' is of kind 'triton' and has its own models: an artifact is for kind pool or edge"),
        ("max_size: 8", "max_size: 0", "31:72: max_size must be at least 1, not 0"),
        ("      - endpoint: rack\n        weight: 1\n        quality: 0.9\n",
         '      - {endpoint: cams, artifact: digits.onnx, version: "1"}\n',
         "32:36: 'cams' already runs another artifact as 'digits' version 1: set another version or model"),
        ("kind: edge}", "kind: edge, location: {tier: cloud}}",
         "24:30: unknown key 'location'; known here: hardware, kind, labels, name, price, select"),
    ],
)  # fmt: skip
def test_artifacts_are_for_those_who_run_them(old: str, new: str, expected: str) -> None:
    assert GROUPED.count(old) == 1
    assert problems(GROUPED.replace(old, new), kinds=ALL_KINDS) == f"t.yaml:{expected}".splitlines()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tenants: []", "tenants: [{name: a}]", "59:10: tenants is not served by this version: leave it out or write []"),
        ('tenants: ["*"]', "tenants: [acme]", '49:42: policies.match.tenants other than ["*"] is not served by this version: leave it out or write ["*"]'),
        ("operators: []", "operators: {}", "60:12: operators is not served by this version: leave it out or write []"),
        ("store: sqlite", "store: postgresql+asyncpg://x", "62:8: store is not served by this version: leave it out or write sqlite"),
        ("replicas: {min: 1, max: 1}", "replicas: {min: 1, max: 2}", "7:27: gateway.replicas.max other than gateway.replicas.min is not served by this version: write one number"),
        ("replicas: {min: 1, max: 1}", "replicas: {min: 3}", "7:19: gateway.replicas.max other than gateway.replicas.min is not served by this version: write one number"),
        ("  limits:", "  tls: {cert_file: a}\n  limits:", "6:8: gateway.tls is not served by this version: leave it out or write null"),
        ("quality: 0.1}", "quality: 0.1, energy: 0}", "51:54: policies.weights.energy is not served by this version"),
        ("labels: {group: gpu}", "power: null", "13:5: endpoints.power is not served by this version"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_named(old: str, new: str, expected: str) -> None:
    assert problems(changed(old, new)) == [f"t.yaml:{expected}"]


def test_neutral_values_of_what_is_not_served_pass() -> None:
    assert parsed(changed('tenants: ["*"]', 'tenants: [acme, "*"]')).policies[0].match.tenants == (
        "acme",
        "*",
    )
    assert parsed(changed("  limits:", "  tls: null\n  limits:")).gateway.name == "gw-plant-7"
