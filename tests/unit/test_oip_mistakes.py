"""Every mistake of the table is told in exactly its words, whichever wire it came over."""

from collections.abc import Callable

import pytest

from oip import codec
from oip.errors import OipError
from oip.infer import parse_request
from oip.scan import scan_request
from oip.signature import Signature, TensorSpec
from oip.validate import check_request
from tests.support.mistakes import (
    MISTAKES,
    MODEL,
    HttpRequest,
    Mistake,
    binary_request,
    grpc_request,
    json_request,
)

DIGITS = Signature(
    (TensorSpec("pixels", "FP32", (-1, 64)),), (TensorSpec("probabilities", "FP32", (-1, 10)),)
)
OVER_GRPC = [m for m in MISTAKES if m.grpc is not None]
OVER_HTTP = [(m, request) for m in MISTAKES for request in (m.json, m.binary) if request is not None]


def over_grpc(body: bytes) -> None:
    scan_request(body)
    check_request(body, DIGITS, MODEL)


def over_http(request: HttpRequest) -> None:
    over_grpc(codec.decode_infer(MODEL, "", request.headers, request.body)[0])


def refused(mistake: Mistake, call: Callable[[], object]) -> None:
    with pytest.raises(OipError) as caught:
        call()
    assert (caught.value.reason, caught.value.message) == (mistake.reason, mistake.message)


@pytest.mark.parametrize("mistake", OVER_GRPC, ids=lambda m: m.name)
def test_over_grpc(mistake: Mistake):
    body = mistake.grpc
    assert body is not None
    refused(mistake, lambda: over_grpc(body))
    refused(mistake, lambda: check_request(body, DIGITS, MODEL))
    refused(mistake, lambda: parse_request(body, DIGITS))


@pytest.mark.parametrize(("mistake", "request_"), OVER_HTTP, ids=lambda m: getattr(m, "name", ""))
def test_over_http(mistake: Mistake, request_: HttpRequest):
    refused(mistake, lambda: over_http(request_))


def test_without_a_mistake_all_is_well():
    over_grpc(grpc_request())
    over_http(json_request())
    over_http(binary_request())


def test_there_are_mistakes_enough_and_each_has_its_name():
    assert len(MISTAKES) >= 20
    assert len({m.name for m in MISTAKES}) == len(MISTAKES)
    assert len([m for m in MISTAKES if m.grpc and m.json and m.binary]) >= 20
