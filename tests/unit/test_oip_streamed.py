"""ModelStreamInfer's messages, against protobuf's own reading of them."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2 as pb

from oip.errors import OipError
from oip.reasons import Reason
from oip.streamed import as_final, read_heading, read_stream_response, stream_error, stream_response


def test_a_response_travels_as_it_is():
    response = pb.ModelInferResponse(model_name="m", id="é" * 200, raw_output_contents=[b"\0" * 300])
    message = stream_response(response.SerializeToString())
    assert pb.ModelStreamInferResponse.FromString(message).infer_response == response
    assert read_stream_response(message) == (response.SerializeToString(), "", "", "")


def test_a_last_response_says_so_beside_its_own_parameters():
    response = pb.ModelInferResponse(model_name="m")
    response.parameters["own"].string_param = "x"
    told = pb.ModelInferResponse.FromString(as_final(response.SerializeToString()))
    assert {key: told.parameters[key].WhichOneof("parameter_choice") for key in told.parameters} == {
        "own": "string_param",
        "triton_final_response": "bool_param",
    }
    assert told.parameters["triton_final_response"].bool_param is True


def test_an_error_of_a_model_is_final_and_one_of_a_refused_request_has_its_id_alone():
    of_model = pb.ModelStreamInferResponse.FromString(stream_error("bröke", "7", "m"))
    assert (of_model.error_message, of_model.infer_response.id) == ("bröke", "7")
    assert of_model.infer_response.model_name == "m"
    assert of_model.infer_response.parameters["triton_final_response"].bool_param is True
    refused = pb.ModelStreamInferResponse.FromString(stream_error("no", "7"))
    assert refused == pb.ModelStreamInferResponse(
        error_message="no", infer_response=pb.ModelInferResponse(id="7")
    )
    assert read_stream_response(stream_error("no", "7"))[1:] == ("no", "", "")
    assert read_stream_response(stream_error("no", "7", "m", "loop"))[1:] == ("no", "m", "loop")


@pytest.mark.parametrize(
    "message", [b"\x0a\x05no", b"\x0a\x01\xff", b"\x0a\x01a\x0a\x01b", b"\x08\x01", b"\xff"]
)
def test_what_is_no_stream_response_is_the_endpoints_fault(message: bytes):
    with pytest.raises(OipError) as caught:
        read_stream_response(message)
    assert caught.value.reason is Reason.ENDPOINT_FAILED


@pytest.mark.parametrize(
    ("kind", "value", "sequence"),
    [
        ("int64_param", 7, ("m", 7)),
        ("string_param", "7", ("m", "7")),
        ("int64_param", 0, None),
        ("string_param", "", None),
        ("bool_param", True, None),
    ],
)
def test_a_sequence_is_told_by_model_and_id_with_its_type(kind: str, value: object, sequence: object):
    request = pb.ModelInferRequest(model_name="m", id="r")
    setattr(request.parameters["sequence_id"], kind, value)
    assert read_heading(request.SerializeToString()) == ("r", "m", sequence)


def test_a_message_that_will_be_refused_has_no_heading():
    assert read_heading(b"\xff") == ("", "", None)
