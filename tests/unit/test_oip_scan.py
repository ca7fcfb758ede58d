"""The scanner against hand-made bytes: what hides a second name, and what is merely unusual."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2 as pb

from oip.errors import OipError
from oip.reasons import Reason
from oip.scan import MAX_FIELDS, scan_request, scan_response, splice


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field with one-byte tag and length."""
    assert number < 16
    assert len(payload) < 128
    return bytes((number << 3 | 2, len(payload))) + payload


NAME = field(1, b"digits")
HIDDEN = field(1, b"secret")


def request() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="digits", model_version="3", id="42")
    message.parameters["priority"].uint64_param = 1
    message.parameters["note"].string_param = "x"
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 200]).parameters["k"].bool_param = True
    message.outputs.add(name="OUTPUT0").parameters["binary_data"].bool_param = True
    message.raw_input_contents.append(bytes(800))
    return message


def malformed(body: bytes) -> str:
    with pytest.raises(OipError) as caught:
        scan_request(body)
    assert caught.value.reason is Reason.MALFORMED
    return caught.value.message


def test_reads_name_version_id_and_parameter_keys():
    view = scan_request(request().SerializeToString())
    assert (view.model_name, view.model_version, view.id) == ("digits", "3", "42")
    assert sorted(view.parameters) == ["note", "priority"]


def test_absent_version_and_id_are_empty():
    view = scan_request(NAME)
    assert (view.model_version, view.id, view.parameters, view.version_span) == ("", "", (), None)


def test_payload_bytes_that_look_like_fields_are_not_read():
    message = request()
    message.raw_input_contents[0] = HIDDEN * 10
    message.inputs[0].contents.bytes_contents.append(HIDDEN)
    assert scan_request(message.SerializeToString()).model_name == "digits"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_singular_field_after_the_payload_is_refused(number: int):
    body = request().SerializeToString() + field(number, b"secret")
    assert pb.ModelInferRequest.FromString(body) is not None
    assert "occurs twice" in malformed(body)


def test_a_second_equal_name_is_refused_too():
    assert "model_name occurs twice" in malformed(NAME + NAME)


@pytest.mark.parametrize(
    "hidden",
    [
        b"\x0a\x86\x00secret",
        b"\x0a\x86\x80\x80\x80\x00secret",
    ],
    ids=["2-bytes", "5-bytes"],
)
def test_overlong_lengths_hide_no_second_name(hidden: bytes):
    assert pb.ModelInferRequest.FromString(NAME + hidden).model_name == "secret"
    assert "model_name occurs twice" in malformed(NAME + hidden)
    assert scan_request(hidden).model_name == "secret"


@pytest.mark.parametrize("tag", [b"\x8a\x00", b"\x8a\x80\x80\x80\x00"], ids=["2-bytes", "5-bytes"])
def test_overlong_tags_that_not_every_parser_knows_are_refused(tag: bytes):
    for body in (NAME + tag + b"\x06secret", tag + b"\x06secret"):
        assert pb.ModelInferRequest.FromString(body).model_name == "secret"
        assert malformed(body).endswith("a tag is longer than it needs to be.")


@pytest.mark.parametrize(
    "tag",
    [
        b"\x8a\x80\x80\x80\x10",
        b"\x8a\x80\x80\x80\x70",
        b"\x8a\x80\x80\x80\x80\x00",
        b"\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x80" * 11,
    ],
    ids=["bit-32", "bits-32-to-34", "six-bytes", "ten-bytes", "endless"],
)
def test_tags_that_a_truncating_parser_takes_for_the_name_are_refused(tag: bytes):
    for body in (NAME + tag + b"\x06secret", tag + b"\x06secret"):
        assert malformed(body).endswith(("a tag is out of range.", "a tag is longer than five bytes."))


def test_a_length_whose_high_bits_a_parser_would_drop_is_refused():
    assert "a length is out of range" in malformed(NAME + b"\x3a\x82\x80\x80\x80\x08hi")


@pytest.mark.parametrize(
    "tail",
    [
        b"\x0a",
        b"\x0a\x07secret",
        b"\x12\x80",
        b"\x3a\xff\xff\xff\xff\x07",
        b"\x3a\xff\xff\xff\xff\x0f",
        b"\x3a\x80\x80\x80\x80\x80\x00",
        b"\x40",
        b"\x40\x80",
        b"\x40" + b"\x80" * 10 + b"\x00",
        b"\x41\x00",
        b"\x45\x00\x00\x00",
        b"\x80",
        b"\x00\x00",
        b"\x02\x00",
        b"\x43\x44",
        b"\x44",
        b"\x46\x00",
        b"\x47",
    ],
)
def test_truncated_oversized_and_reserved_encodings_are_refused(tail: bytes):
    malformed(NAME + tail)


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("wire", [0, 1, 5])
def test_a_known_field_of_another_wire_type_is_refused(number: int, wire: int):
    value = {0: b"\x01", 1: bytes(8), 5: bytes(4)}[wire]
    head = NAME if number != 1 else b""
    assert f"field {number} has wire type {wire}" in malformed(head + bytes((number << 3 | wire,)) + value)


def test_unknown_fields_of_every_plain_wire_type_are_stepped_over():
    unknown = b"\x40\x05" + b"\x49" + bytes(8) + b"\x55" + bytes(4) + b"\x5a\x02hi" + b"\x82\x7d\x01x"
    assert scan_request(unknown + NAME + unknown).model_name == "digits"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_text_that_is_not_utf8_is_refused(number: int):
    head = b"" if number == 1 else NAME
    assert "not UTF-8" in malformed(head + field(number, b"\xed\xa0\x80"))


@pytest.mark.parametrize("body", [b"", field(2, b"1"), field(1, b"")])
def test_a_missing_or_empty_name_is_refused(body: bytes):
    assert malformed(body) == "The ModelInferRequest has no model_name."


@pytest.mark.parametrize(("inputs", "raws"), [(1, 2), (2, 3), (0, 1)])
def test_more_raw_contents_than_inputs_are_refused(inputs: int, raws: int):
    message = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(4)] * raws)
    for at in range(inputs):
        message.inputs.add(name=f"INPUT{at}", datatype="INT32", shape=[1])
    assert f"{raws} raw_input_contents, but {inputs} inputs" in malformed(message.SerializeToString())


def test_millions_of_tiny_fields_are_not_walked():
    few = NAME + b"\x40\x00" * (MAX_FIELDS - 1)
    assert scan_request(few).model_name == "digits"
    assert "more than" in malformed(few + b"\x40\x00")
    inner = field(5, b"\x40\x00" * 60)
    assert "more than" in malformed(NAME + inner * (MAX_FIELDS // 60))


def entry(key: bytes, value: bytes = b"\x08\x01") -> bytes:
    return field(1, key) + field(2, value)


def test_a_parameter_key_that_repeats_is_refused():
    body = NAME + field(4, entry(b"a")) + field(4, entry(b"b")) + field(4, entry(b"a"))
    assert "parameter 'a' occurs twice" in malformed(body)


@pytest.mark.parametrize(
    "inner",
    [
        field(1, b"a") + field(1, b"tidegate-privacy"),
        field(2, b"") + field(2, b""),
        b"\x08\x01",
        field(1, b"\xff"),
        field(1, b"a") + field(3, b""),
    ],
    ids=["key-twice", "value-twice", "key-as-number", "key-not-utf8", "unknown-field"],
)
def test_a_parameter_entry_that_can_be_read_two_ways_is_refused(inner: bytes):
    malformed(NAME + field(4, inner))


def test_a_parameter_without_a_key_is_the_empty_key_as_in_protobuf():
    body = NAME + field(4, field(2, b"\x08\x01"))
    assert list(pb.ModelInferRequest.FromString(body).parameters) == [""]
    assert scan_request(body).parameters == ("",)


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("tidegate-privacy", "tidegate-privacy"),
        ("Tidegate-Max-Cost", "tidegate-max-cost"),
        ("TIDEGATE_deadline_ms", "tidegate-deadline-ms"),
    ],
)
def test_options_inside_parameters_are_refused_with_the_header_to_use(key: str, header: str):
    message = request()
    message.parameters[key].string_param = "x"
    with pytest.raises(OipError) as caught:
        scan_request(message.SerializeToString())
    assert caught.value.reason is Reason.BAD_OPTION
    assert f"the header (gRPC: metadata) {header}." in caught.value.message


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_options_on_a_tensor_are_refused(where: str):
    message = request()
    getattr(message, where)[0].parameters["tidegate-site"].string_param = "x"
    with pytest.raises(OipError) as caught:
        scan_request(message.SerializeToString())
    assert caught.value.reason is Reason.BAD_OPTION


@pytest.mark.parametrize("where", ["inputs", "outputs"])
@pytest.mark.parametrize("key", ["region", "byte_size", "offset"])
@pytest.mark.parametrize("kind", ["string_param", "int64_param", None])
def test_shared_memory_is_not_served_whatever_its_value(where: str, key: str, kind: str | None):
    message = request()
    parameter = getattr(message, where)[0].parameters[f"shared_memory_{key}"]
    if kind is not None:
        setattr(parameter, kind, "r" if kind == "string_param" else 1)
    with pytest.raises(OipError) as caught:
        scan_request(message.SerializeToString())
    assert caught.value.reason is Reason.NOT_SERVED
    assert f"shared_memory_{key}" in caught.value.message


def test_the_shape_may_be_packed_or_not():
    unpacked = field(1, b"IN") + b"\x18\x01\x18\x10"
    assert scan_request(NAME + field(5, unpacked)).model_name == "digits"
    assert "field 3 of an input" in malformed(NAME + field(5, b"\x1d" + bytes(4)))


@pytest.mark.parametrize("inner", [b"\x08\x01", field(1, b"a") * 2, field(5, b"") * 2, b"\x0a\x05a"])
def test_a_tensor_that_can_be_read_two_ways_is_refused(inner: bytes):
    malformed(NAME + field(5, inner))


def reference(name: str, version: str) -> pb.ModelInferRequest:
    message = request()
    message.model_name, message.model_version = name, version
    return message


@pytest.mark.parametrize("name", ["digits-int8-on-the-west-coast" * 8, "d", "模型"])
@pytest.mark.parametrize("version", ["12", ""])
def test_splice_changes_only_name_and_version(name: str, version: str):
    body = request().SerializeToString()
    spliced = splice(body, scan_request(body), model_name=name, model_version=version)
    assert pb.ModelInferRequest.FromString(spliced) == reference(name, version)


def test_splice_adds_a_version_and_leaves_unknown_fields_alone():
    body = b"\x5a\x02hi" + NAME + field(3, b"7")
    spliced = splice(body, scan_request(body), model_version="2")
    assert spliced == b"\x5a\x02hi" + NAME + field(2, b"2") + field(3, b"7")


def test_splice_replaces_fields_written_in_reverse_order():
    body = field(2, b"1") + field(3, b"7") + NAME
    spliced = splice(body, scan_request(body), model_name="x", model_version="22")
    assert spliced == field(2, b"22") + field(3, b"7") + field(1, b"x")


def test_splice_without_a_change_returns_the_same_bytes():
    body = request().SerializeToString()
    assert splice(body, scan_request(body), model_name="digits", model_version=None) is body


def response() -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name="d_v2", model_version="2", id="42")
    message.outputs.add(name="OUT", datatype="FP32", shape=[1])
    message.raw_output_contents.append(bytes(4))
    return message


def test_a_response_is_scanned_and_renamed():
    body = response().SerializeToString()
    view = scan_response(body)
    assert (view.model_name, view.model_version, view.id) == ("d_v2", "2", "42")
    message = response()
    message.model_name = "digits"
    assert pb.ModelInferResponse.FromString(splice(body, view, model_name="digits")) == message


def test_a_response_without_a_name_can_be_given_one_and_a_version():
    body = field(3, b"7")
    spliced = splice(body, scan_response(body), model_name="m", model_version="1")
    assert spliced == field(1, b"m") + field(2, b"1") + body


@pytest.mark.parametrize("tail", [field(1, b"other"), b"\x30\x01", b"\x0a"])
def test_a_broken_response_is_the_endpoints_failure(tail: bytes):
    with pytest.raises(OipError) as caught:
        scan_response(response().SerializeToString() + tail)
    assert caught.value.reason is Reason.ENDPOINT_FAILED
