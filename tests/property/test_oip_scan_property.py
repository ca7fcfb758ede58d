"""The scanner beside protobuf: whatever both accept, both read alike."""

from __future__ import annotations

import contextlib

from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from oip.errors import OipError
from oip.reasons import Reason
from oip.scan import RequestView, scan_request, scan_response, splice

SETTINGS = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
MORE = settings(SETTINGS, max_examples=1000)

text = st.text(st.characters(codec="utf-8"), max_size=12)
name = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
plain_key = text.filter(lambda key: not key.lower().startswith(("tidegate", "shared")))


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, pb.InferParameter]:
    one = st.one_of(
        st.builds(pb.InferParameter, bool_param=st.booleans()),
        st.builds(pb.InferParameter, int64_param=st.integers(-(2**63), 2**63 - 1)),
        st.builds(pb.InferParameter, string_param=text),
        st.builds(pb.InferParameter, double_param=st.floats(allow_nan=False)),
        st.builds(pb.InferParameter, uint64_param=st.integers(0, 2**64 - 1)),
        st.just(pb.InferParameter()),
    )
    return draw(st.dictionaries(plain_key, one, max_size=3))


@st.composite
def contents(draw: st.DrawFn) -> pb.InferTensorContents:
    return pb.InferTensorContents(
        int_contents=draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)),
        bytes_contents=draw(st.lists(st.binary(max_size=200), max_size=2)),
    )


@st.composite
def inputs(draw: st.DrawFn) -> pb.ModelInferRequest.InferInputTensor:
    return pb.ModelInferRequest.InferInputTensor(
        name=draw(text),
        datatype=draw(st.sampled_from(["", "INT32", "BYTES"])),
        shape=draw(st.lists(st.integers(-1, 2**63 - 1), max_size=4)),
        parameters=draw(parameters()),
        contents=draw(st.none() | contents()),
    )


@st.composite
def requests(draw: st.DrawFn) -> pb.ModelInferRequest:
    output = st.builds(pb.ModelInferRequest.InferRequestedOutputTensor, name=text, parameters=parameters())
    given = draw(st.lists(inputs(), max_size=3))
    return pb.ModelInferRequest(
        model_name=draw(name),
        model_version=draw(text),
        id=draw(text),
        parameters=draw(parameters()),
        inputs=given,
        outputs=draw(st.lists(output, max_size=2)),
        raw_input_contents=draw(st.lists(st.binary(max_size=300), max_size=len(given))),
    )


@st.composite
def responses(draw: st.DrawFn) -> pb.ModelInferResponse:
    output = st.builds(
        pb.ModelInferResponse.InferOutputTensor, name=text, shape=st.lists(st.integers(0, 9), max_size=3)
    )
    return pb.ModelInferResponse(
        model_name=draw(text),
        model_version=draw(text),
        id=draw(text),
        parameters=draw(parameters()),
        outputs=draw(st.lists(output, max_size=2)),
        raw_output_contents=draw(st.lists(st.binary(max_size=300), max_size=2)),
    )


def varint(value: int, size: int = 0) -> bytes:
    """A varint of at least `size` bytes: padded with zeros that say nothing."""
    out = bytearray()
    while True:
        out.append(value & 0x7F)
        value >>= 7
        if not value and len(out) >= size:
            break
    return bytes(byte | 0x80 for byte in out[:-1]) + out[-1:]


@st.composite
def unknown_fields(draw: st.DrawFn) -> bytes:
    number = draw(st.integers(8, 2**29 - 1))
    wire, value = draw(
        st.one_of(
            st.tuples(st.just(0), st.integers(0, 2**64 - 1).map(varint)),
            st.tuples(st.just(1), st.binary(min_size=8, max_size=8)),
            st.tuples(st.just(2), st.binary(max_size=40).map(lambda data: varint(len(data)) + data)),
            st.tuples(st.just(5), st.binary(min_size=4, max_size=4)),
        )
    )
    return varint(number << 3 | wire) + value


def top_fields(body: bytes) -> list[tuple[int, bytes]]:
    """The top-level fields of what protobuf serialized: all are length-delimited there."""
    fields: list[tuple[int, bytes]] = []
    at = 0
    while at < len(body):
        head, at = body[at], at + 1
        size = shift = 0
        while True:
            byte, at = body[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        fields.append((head, body[at : at + size]))
        at += size
    return fields


def truncating_parser(body: bytes) -> tuple[str, str]:
    """Name and version as a parser sees them that reads ten-byte tags and drops all but 32 bits.

    Raises ValueError where it cannot go on. Some protobuf libraries read tags like this.
    """

    def read(at: int) -> tuple[int, int]:
        value = 0
        for index in range(10):
            if at >= len(body):
                raise ValueError("cut")
            value |= (body[at] & 0x7F) << 7 * index
            at += 1
            if body[at - 1] < 0x80:
                return value, at
        raise ValueError("endless")

    seen = {1: b"", 2: b""}
    at = 0
    while at < len(body):
        tag, at = read(at)
        tag &= 0xFFFFFFFF
        wire = tag & 7
        if wire == 0:
            _, at = read(at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            size, at = read(at)
            size &= 0xFFFFFFFF
            if tag >> 3 in seen:
                seen[tag >> 3] = body[at : at + size]
            at += size
        else:
            raise ValueError("group")
        if at > len(body):
            raise ValueError("cut")
    return seen[1].decode(), seen[2].decode()


def scanned(body: bytes) -> RequestView | Reason:
    try:
        return scan_request(body)
    except OipError as error:
        return error.reason


def check_agreement(body: bytes) -> bool:
    """Whether the scanner takes `body`; when it does, every parser that takes it agrees with it."""
    view = scanned(body)
    if isinstance(view, Reason):
        assert view in (Reason.MALFORMED, Reason.BAD_OPTION, Reason.NOT_SERVED)
        return False
    message = None
    with contextlib.suppress(DecodeError):  # protobuf refuses more, such as bad UTF-8 in tensor names
        message = pb.ModelInferRequest.FromString(body)
    if message is not None:
        assert (view.model_name, view.model_version, view.id) == (
            message.model_name,
            message.model_version,
            message.id,
        )
        assert sorted(view.parameters) == sorted(message.parameters)
        for tensor in (*message.inputs, *message.outputs):
            assert not [
                key for key in tensor.parameters if key.lower().startswith(("tidegate", "shared_memory"))
            ]
    with contextlib.suppress(ValueError):
        assert truncating_parser(body) == (view.model_name, view.model_version)
    return True


@SETTINGS
@given(requests())
def test_scanner_sees_what_protobuf_serialized(message: pb.ModelInferRequest):
    assert check_agreement(message.SerializeToString())


@SETTINGS
@given(requests(), st.lists(unknown_fields(), max_size=4), st.data())
def test_order_padding_and_unknown_fields_change_nothing(
    message: pb.ModelInferRequest, unknown: list[bytes], data: st.DataObject
):
    pad = st.sampled_from([0, 0, 2, 5])
    parts = [
        varint(tag, 0) + varint(len(value), data.draw(pad)) + value
        for tag, value in top_fields(message.SerializeToString())
    ]
    body = b"".join(data.draw(st.permutations(parts + unknown)))
    assert check_agreement(body)
    assert scan_request(body).model_name == message.model_name


@SETTINGS
@given(requests(), st.sampled_from([1, 2, 3]), text, st.integers(0, 5), st.integers(0, 5), st.data())
def test_a_second_singular_field_is_refused_wherever_it_is(
    message: pb.ModelInferRequest, number: int, value: str, tag_size: int, size_size: int, data: st.DataObject
):
    payload = value.encode()
    hidden = varint(number << 3 | 2, tag_size) + varint(len(payload), size_size) + payload
    setattr(message, ("model_name", "model_version", "id")[number - 1], "first")
    parts = [
        bytes((tag,)) + varint(len(part)) + part for tag, part in top_fields(message.SerializeToString())
    ]
    at = data.draw(st.integers(0, len(parts)))
    body = b"".join([*parts[:at], hidden, *parts[at:]])
    pb.ModelInferRequest.FromString(body)
    assert not check_agreement(body)


hostile_fields = st.builds(
    lambda number, wire, high, tag_size, size, size_size, payload: (
        varint((number << 3 | wire) | high << 32, tag_size) + varint(len(payload) + size, size_size) + payload
    ),
    number=st.sampled_from([0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 2**29 - 1, 2**29 + 1]),
    wire=st.sampled_from([2, 2, 2, 2, 2, 0, 1, 3, 4, 5, 6, 7]),
    high=st.sampled_from([0, 0, 0, 1, 7, 2**31]),
    tag_size=st.sampled_from([0, 0, 2, 5, 6, 10, 11]),
    size=st.sampled_from([0, 0, 0, 0, 1, 2**31, 2**32, 2**35, 2**64]),
    size_size=st.sampled_from([0, 0, 2, 5, 6, 10]),
    payload=st.sampled_from(
        [
            *(b"digits", b"secret", b"", b"\xff", bytes(130)),
            *(b"\x0a\x06digits", b"\x0a\x01a", b"\x0a\x01a\x12\x02\x08\x01"),
            *(b"\x0a\x11tidegate-privacyx", b"\x22\x16\x0a\x14shared_memory_region"),
        ]
    ),
)


@MORE
@given(st.lists(hostile_fields, max_size=6))
def test_hand_made_encodings_hide_nothing(fields: list[bytes]):
    check_agreement(b"\x0a\x06digits" + b"".join(fields))
    check_agreement(b"".join(fields) + b"\x0a\x06digits")


SOUND = pb.ModelInferRequest(
    model_name="digits",
    model_version="3",
    id="7",
    parameters={"a": pb.InferParameter(int64_param=300), "b": pb.InferParameter(string_param="x")},
    inputs=[
        pb.ModelInferRequest.InferInputTensor(
            name="IN",
            datatype="INT32",
            shape=[1, 300],
            parameters={"c": pb.InferParameter(bool_param=True)},
            contents=pb.InferTensorContents(int_contents=[1, 2, 3]),
        )
    ],
    outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="OUT")],
    raw_input_contents=[b"\x0a\x06secret" * 3, bytes(130)],
).SerializeToString()
mutations = st.lists(
    st.tuples(st.integers(0, len(SOUND)), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=4
)


@settings(SETTINGS, max_examples=2000)
@given(mutations)
def test_mutated_bytes_never_crash_or_mislead(changes: list[tuple[int, int, bytes]]):
    body = bytearray(SOUND)
    for at, cut, new in changes:
        body[at : at + cut] = new
    check_agreement(bytes(body))


@MORE
@given(st.binary(max_size=120))
def test_random_bytes_never_crash_or_mislead(body: bytes):
    check_agreement(body)
    check_agreement(b"\x0a\x01m" + body)
    with contextlib.suppress(OipError):
        scan_response(body)


@SETTINGS
@given(requests(), st.lists(unknown_fields(), max_size=2), st.none() | name, st.none() | text)
def test_splice_changes_name_and_version_and_nothing_else(
    message: pb.ModelInferRequest, unknown: list[bytes], new_name: str | None, new_version: str | None
):
    body = b"".join(unknown) + message.SerializeToString() + b"".join(unknown)
    spliced = splice(body, scan_request(body), model_name=new_name, model_version=new_version)
    want = pb.ModelInferRequest.FromString(body)
    if new_name is not None:
        want.model_name = new_name
    if new_version is not None:
        want.model_version = new_version
    assert pb.ModelInferRequest.FromString(spliced) == want
    assert check_agreement(spliced)
    restored = splice(
        spliced,
        scan_request(spliced),
        model_name=message.model_name,
        model_version=message.model_version,
    )
    assert sorted(restored) == sorted(body)


@SETTINGS
@given(responses(), text, text)
def test_responses_are_scanned_and_spliced_alike(
    message: pb.ModelInferResponse, new_name: str, new_version: str
):
    body = message.SerializeToString()
    view = scan_response(body)
    assert (view.model_name, view.model_version, view.id) == (
        message.model_name,
        message.model_version,
        message.id,
    )
    message.model_name, message.model_version = new_name, new_version
    spliced = splice(body, view, model_name=new_name, model_version=new_version)
    assert pb.ModelInferResponse.FromString(spliced) == message
