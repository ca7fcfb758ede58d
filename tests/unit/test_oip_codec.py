"""Answers as HTTP carries them, beside what a real Triton 2.51 sent for the same model."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from oip import codec
from oip.codec import HttpInferContext, encode_infer, encodes_fast
from oip.errors import OipError
from oip.reasons import Reason

JSON = HttpInferContext("", False, {})
BINARY = HttpInferContext("", True, {})


def answer(
    datatype: str, shape: list[int], raw: bytes | None, contents: pb.InferTensorContents | None = None
) -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name="digits", model_version="3", id="42")
    message.outputs.add(name="OUT", datatype=datatype, shape=shape, contents=contents)
    if raw is not None:
        message.raw_output_contents.append(raw)
    return message


def written(message: pb.ModelInferResponse, context: HttpInferContext) -> tuple[dict[str, Any], bytes]:
    """The JSON document and the tail, cut where the header says and with the content type checked."""
    body, headers = encode_infer(context, message.SerializeToString())
    values = dict(headers)
    assert len(values) == len(headers)
    cut = values.get("inference-header-content-length")
    kind = "application/json" if cut is None else "application/octet-stream"
    assert values["content-type"] == kind
    length = len(body) if cut is None else int(cut)
    return json.loads(body[:length]), body[length:]


def failed(message: pb.ModelInferResponse, context: HttpInferContext = JSON) -> str:
    with pytest.raises(OipError) as caught:
        encode_infer(context, message.SerializeToString())
    assert caught.value.reason is Reason.ENDPOINT_FAILED
    return caught.value.message


def test_json_output_is_flat_and_carries_the_requests_id():
    message = answer("INT32", [1, 2], struct.pack("<2i", 7, -1))
    document, _ = written(message, HttpInferContext("a\0b", False, {}))
    assert document == {
        "id": "a\0b",
        "model_name": "digits",
        "model_version": "3",
        "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [1, 2], "data": [7, -1]}],
    }


def test_absent_members_are_left_out():
    message = answer("INT32", [0], b"")
    message.model_version = ""
    assert written(message, JSON)[0].keys() == {"model_name", "outputs"}


def test_an_outputs_own_wish_wins_over_the_requests():
    message = answer("INT32", [1], b"\x01\0\0\0")
    message.outputs.add(name="B", datatype="INT32", shape=[1])
    message.outputs.add(name="C", datatype="INT32", shape=[1])
    message.raw_output_contents.extend([b"\x02\0\0\0", b"\x03\0\0\0"])
    document, tail = written(message, HttpInferContext("", True, {"B": False}))
    assert tail == b"\x01\0\0\0\x03\0\0\0"
    assert [output.get("data") for output in document["outputs"]] == [None, [2], None]
    sizes = [output.get("parameters", {}).get("binary_data_size") for output in document["outputs"]]
    assert sizes == [4, None, 4]
    document, tail = written(message, HttpInferContext("", False, {"C": True}))
    assert tail == b"\x03\0\0\0"


def test_an_empty_binary_output_still_has_its_header():
    document, tail = written(answer("FP32", [0, 4], b""), BINARY)
    assert tail == b""
    assert document["outputs"][0]["shape"] == [0, 4]
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert written(answer("FP32", [0, 4], b""), JSON)[0]["outputs"][0]["data"] == []


def test_binary_output_is_the_endpoints_bytes():
    for datatype, raw in (
        ("FP16", bytes.fromhex("cd469a41")),
        ("BF16", bytes.fromhex("803f00c0")),
        ("FP32", struct.pack("<I", 0x7FC00001) + bytes(4)),
    ):
        assert written(answer(datatype, [2], raw), BINARY)[1] == raw
    raw = bytes.fromhex("04000000fffe0041")
    assert written(answer("BYTES", [1], raw), BINARY)[1] == raw


def test_nan_and_infinity_are_written_as_tritons_words():
    raw = struct.pack("<4f", float("nan"), float("inf"), float("-inf"), 0.1)
    body, _ = encode_infer(JSON, answer("FP32", [4], raw).SerializeToString())
    assert b'"data":[NaN,Infinity,-Infinity,0.10000000149011612]' in body


def test_text_is_written_as_utf8():
    raw = bytes.fromhex("0100000061 00000000 02000000c3a9")
    body, _ = encode_infer(JSON, answer("BYTES", [3], raw).SerializeToString())
    assert '"data":["a","","é"]'.encode() in body


@pytest.mark.parametrize(
    ("datatype", "raw"), [("FP16", bytes(2)), ("BF16", bytes(2)), ("BYTES", b"\x02\0\0\0\xff\xfe")]
)
def test_what_json_cannot_carry_is_the_callers_to_change(datatype: str, raw: bytes):
    with pytest.raises(OipError, match="ask for binary") as caught:
        encode_infer(JSON, answer(datatype, [1], raw).SerializeToString())
    assert caught.value.status.http == 400


TYPED = {
    "BOOL": ("bool_contents", [True, False], b"\x01\x00"),
    "UINT8": ("uint_contents", [255, 0], b"\xff\x00"),
    "UINT16": ("uint_contents", [65535], b"\xff\xff"),
    "UINT32": ("uint_contents", [2**32 - 1], b"\xff" * 4),
    "UINT64": ("uint64_contents", [2**64 - 1], b"\xff" * 8),
    "INT8": ("int_contents", [-128], b"\x80"),
    "INT16": ("int_contents", [-1], b"\xff\xff"),
    "INT32": ("int_contents", [-1], b"\xff" * 4),
    "INT64": ("int64_contents", [2**53 + 1], (2**53 + 1).to_bytes(8, "little")),
    "FP32": ("fp32_contents", [float("inf"), 0.5], struct.pack("<2f", float("inf"), 0.5)),
    "FP64": ("fp64_contents", [0.1], struct.pack("<d", 0.1)),
    "BYTES": ("bytes_contents", [b"\xff", b""], bytes.fromhex("01000000ff00000000")),
}


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_taken_too(datatype: str):
    member, values, raw = TYPED[datatype]
    contents = pb.InferTensorContents(**{member: values})
    assert written(answer(datatype, [len(values)], None, contents), BINARY)[1] == raw


def test_answers_that_contradict_themselves_are_the_endpoints_failure():
    assert "2 raw_output_contents" in failed(
        pb.ModelInferResponse(outputs=[{"name": "A"}], raw_output_contents=[b"", b""])
    )
    assert "takes 8" in failed(answer("FP32", [2], bytes(4)), BINARY)
    assert "takes 4" in failed(answer("FP32", [1], None))
    assert "shape" in failed(answer("FP32", [-1], bytes(4)))
    assert "FP8" in failed(answer("FP8", [1], bytes(1)))
    assert "inside element 0" in failed(answer("BYTES", [1], b"\xff\xff\xff\xff"), BINARY)
    contents = pb.InferTensorContents(int_contents=[300])
    assert "range of INT8" in failed(answer("INT8", [1], None, contents))
    contents = pb.InferTensorContents(fp32_contents=[1])
    assert "takes 2" in failed(answer("FP16", [1], None, contents), BINARY)
    with pytest.raises(OipError, match="it is no ModelInferResponse"):
        encode_infer(JSON, b"\x0a")


def test_parameters_of_an_answer_keep_their_types():
    message = answer("INT32", [1], bytes(4))
    for key, kind, value in (
        ("b", "bool_param", False),
        ("i", "int64_param", -5),
        ("u", "uint64_param", 2**64 - 1),
        ("d", "double_param", 0.5),
        ("s", "string_param", ""),
    ):
        setattr(message.parameters[key], kind, value)
    message.parameters["unset"].SetInParent()
    message.outputs[0].parameters["p"].int64_param = 1
    document, _ = written(message, BINARY)
    want = {"b": False, "i": -5, "u": 2**64 - 1, "d": 0.5, "s": ""}
    assert document["parameters"] == want
    assert {key: type(value) for key, value in document["parameters"].items()} == {
        key: type(value) for key, value in want.items()
    }
    assert document["outputs"][0]["parameters"] == {"p": 1, "binary_data_size": 4}


CONFIG = base64.b64decode(
    "CqQBCg9zaW1wbGVfc2VxdWVuY2UaBAoCCAEgCCoMCgVJTlBVVBAIIgEBMg0KBk9VVFBVVBAIGgEBOhcKEXNpbXBsZV9zZXF1"
    "ZW5jZV8wEAEgAkIIbW9kZWwucHliCCoCCAEyAggBajYIgK3iBBINCgVTVEFSVBIEEgIAARINCgNFTkQSBggCEgIAARIPCgVS"
    "RUFEWRIGCAESAgABGgCKAQZweXRob24="
)
CONFIG_JSON = """
{"name":"simple_sequence","platform":"","backend":"python","runtime":"",
"version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,
"input":[{"name":"INPUT","data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[1],"is_shape_tensor":false,
"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],
"output":[{"name":"OUTPUT","data_type":"TYPE_INT32","dims":[1],"label_filename":"","is_shape_tensor":false,
"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],
"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},
"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},
"sequence_batching":{"direct":{"max_queue_delay_microseconds":0,"minimum_slot_utilization":0},
"max_sequence_idle_microseconds":10000000,"control_input":[
{"name":"START","control":[{"kind":"CONTROL_SEQUENCE_START","int32_false_true":[0,1],"fp32_false_true":[],
"bool_false_true":[],"data_type":"TYPE_INVALID"}]},
{"name":"END","control":[{"kind":"CONTROL_SEQUENCE_END","int32_false_true":[0,1],"fp32_false_true":[],
"bool_false_true":[],"data_type":"TYPE_INVALID"}]},
{"name":"READY","control":[{"kind":"CONTROL_SEQUENCE_READY","int32_false_true":[0,1],"fp32_false_true":[],
"bool_false_true":[],"data_type":"TYPE_INVALID"}]}],"state":[],"iterative_sequence":false},
"instance_group":[{"name":"simple_sequence_0","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],
"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},
"metric_tags":{},"parameters":{},"model_warmup":[]}
"""
METADATA = base64.b64decode(
    "Cg9zaW1wbGVfc2VxdWVuY2USATEaBnB5dGhvbiIbCgVJTlBVVBIFSU5UMzIaC////////////wEBKhwKBk9VVFBVVBIFSU5U"
    "MzIaC////////////wEB"
)
METADATA_JSON = """
{"name":"simple_sequence","versions":["1"],"platform":"python",
"inputs":[{"name":"INPUT","datatype":"INT32","shape":[-1,1]}],
"outputs":[{"name":"OUTPUT","datatype":"INT32","shape":[-1,1]}]}
"""
STATISTICS = base64.b64decode(
    "CooBCg9zaW1wbGVfc2VxdWVuY2USATEY8LG176I0IAQoBDIwCgcIBBDe6eM0EgAaBggEEIzMZSIGCAQQw48PKgcIBBCMyIsz"
    "MgYIBBDps2I6AEIAOhsIARIGCAIQzZsHGgcIAhDF4d8yIgYIAhDXhRc6GggCEgYIAhD28wcaBggCEMfmKyIGCAIQkq5L"
)
STATISTICS_JSON = """
{"model_stats":[{"name":"simple_sequence","version":"1","last_inference":1796066859248,"inference_count":4,
"execution_count":4,"inference_stats":{"success":{"count":4,"ns":110687454},"fail":{"count":0,"ns":0},
"queue":{"count":4,"ns":1664524},"compute_input":{"count":4,"ns":247747},
"compute_infer":{"count":4,"ns":107144204},"compute_output":{"count":4,"ns":1612265},
"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"response_stats":{},
"batch_stats":[{"batch_size":1,"compute_input":{"count":2,"ns":118221},"compute_infer":{"count":2,"ns":106426565},
"compute_output":{"count":2,"ns":377559}},{"batch_size":2,"compute_input":{"count":2,"ns":129526},
"compute_infer":{"count":2,"ns":717639},"compute_output":{"count":2,"ns":1234706}}],"memory_usage":[]}]}
"""


@pytest.mark.parametrize(
    ("write", "given", "want"),
    [
        (codec.config_to_json, CONFIG, CONFIG_JSON),
        (codec.metadata_to_json, METADATA, METADATA_JSON),
        (codec.statistics_to_json, STATISTICS, STATISTICS_JSON),
    ],
    ids=["config", "metadata", "statistics"],
)
def test_the_same_json_as_tritons_own_http_server(write: Any, given: bytes, want: str):
    both = [json.dumps(json.loads(text, parse_int=float), sort_keys=True) for text in (write(given), want)]
    assert both[0] == both[1]


def test_maps_floats_and_response_statistics_are_plain_json():
    config = pb.ModelConfigResponse()
    config.config.parameters["k"].string_value = "v"
    config.config.cc_model_filenames["7.5"] = "m.plan"
    control = config.config.sequence_batching.control_input.add(name="S").control.add()
    control.fp32_false_true.extend([0.1, 1.0])
    plain = json.loads(codec.config_to_json(config.SerializeToString()))
    assert plain["parameters"] == {"k": {"string_value": "v"}}
    assert plain["cc_model_filenames"] == {"7.5": "m.plan"}
    assert plain["sequence_batching"]["control_input"][0]["control"][0]["fp32_false_true"] == [0.1, 1.0]
    statistics = pb.ModelStatisticsResponse()
    statistics.model_stats.add().response_stats["0"].cancel.ns = 2**63
    plain = json.loads(codec.statistics_to_json(statistics.SerializeToString()))
    assert plain["model_stats"][0]["response_stats"] == {"0": {"cancel": {"count": 0, "ns": 2**63}}}


def test_renaming_changes_only_the_name():
    before, after = json.loads(METADATA_JSON), codec.rename_metadata(METADATA, "digits")
    assert json.loads(codec.metadata_to_json(after)) == {**before, "name": "digits"}
    before, after = json.loads(CONFIG_JSON), codec.rename_config(CONFIG, "digits")
    assert json.loads(codec.config_to_json(after)) == {**before, "name": "digits"}


def test_answers_about_the_server_need_no_stubs():
    extensions = ["binary_tensor_data", "parameters"]
    data = codec.server_metadata("gw", "0.1.0", extensions)
    assert pb.ServerMetadataResponse.FromString(data).extensions == extensions
    assert json.loads(codec.server_metadata_to_json(data)) == {
        "name": "gw",
        "version": "0.1.0",
        "extensions": extensions,
    }
    for flag in (True, False):
        assert pb.ServerLiveResponse.FromString(codec.server_live(flag)).live is flag
        assert pb.ServerReadyResponse.FromString(codec.server_ready(flag)).ready is flag
        assert pb.ModelReadyResponse.FromString(codec.model_ready(flag)).ready is flag


@pytest.mark.parametrize(
    "kind", ["ModelReadyRequest", "ModelMetadataRequest", "ModelConfigRequest", "ModelStatisticsRequest"]
)
def test_requests_about_a_model_name_it(kind: str):
    message = getattr(pb, kind)(name="digits", version="3")
    assert codec.named_model(message.SerializeToString()) == ("digits", "3")


def test_a_broken_request_about_a_model_is_malformed():
    for body in (b"\x0a", b"\x0a\x01\xff", b"\x00"):
        with pytest.raises(OipError) as caught:
            codec.named_model(body)
        assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("write", [codec.metadata_to_json, codec.config_to_json, codec.rename_config])
def test_broken_metadata_is_the_endpoints_failure(write: Any):
    with pytest.raises(OipError) as caught:
        write(b"\x0a") if write is not codec.rename_config else write(b"\x0a", "x")
    assert caught.value.reason is Reason.ENDPOINT_FAILED


@pytest.mark.parametrize(
    ("context", "datatype", "size", "fast"),
    [
        (JSON, "FP32", 2**16, False),
        (JSON, "FP32", 2**14, True),
        (BINARY, "FP32", 2**21, True),
        (BINARY, "BYTES", 2**21, False),
        (HttpInferContext("", False, {"O": True}), "FP32", 2**21, True),
        (HttpInferContext("", True, {"O": True, "P": False}), "FP32", 2**21, False),
    ],
)
def test_what_takes_long_to_encode_is_known_beforehand(
    context: HttpInferContext, datatype: str, size: int, fast: bool
):
    assert encodes_fast(context, answer(datatype, [size // 4], b"\0" * size).SerializeToString()) is fast
