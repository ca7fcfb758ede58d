"""Whatever JSON is sent to generate: a message that fits its signature, or one clear refusal."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from oip.codec import decode_generate
from oip.errors import OipError
from oip.reasons import Reason
from oip.signature import Signature, TensorSpec
from oip.validate import check_request

DIMS = st.lists(st.integers(-1, 3), max_size=3).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text("aé\0", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(
    dims=DIMS,
    datatype=st.sampled_from(["INT32", "BYTES", "BOOL", "FP32", "FP16"]),
    max_batch=st.sampled_from([0, 4]),
    members=st.dictionaries(st.sampled_from(["A", "id", "parameters", "x"]), VALUES),
)
def test_what_is_taken_fits_and_the_rest_is_refused(
    dims: tuple[int, ...], datatype: str, max_batch: int, members: dict[str, object]
):
    shape = (-1, *dims) if max_batch else dims
    signature = Signature((TensorSpec("A", datatype, shape, optional=True),), (), max_batch)
    message, refused = outcome(json.dumps(members).encode(), signature)
    assert refused in (None, Reason.MALFORMED, Reason.TOO_LARGE)
    if refused is None and shape.count(0) == 0:
        check_request(message, signature, "m")


def outcome(body: bytes, signature: Signature) -> tuple[bytes, Reason | None]:
    try:
        return decode_generate("m", "", body, signature, 2**20)[0], None
    except OipError as error:
        return b"", error.reason
