"""What is said of an inference request that does not fit its model: one text for each mistake.

Where Triton has a clear text it is Triton's, so that clients which look for it find it on every route;
its prefix "[request id: ...]" and its note on model configurations are left out. Every function gives
an OipError MALFORMED to raise. Names are shown as `names.shown` does, and long lists are cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from oip.errors import OipError
from oip.names import shown
from oip.reasons import Reason

MOST_LISTED = 16
"""Names or dimensions that a message lists at most."""


def malformed(message: str) -> OipError:
    return OipError(Reason.MALFORMED, message)


def duplicate_input(name: str) -> OipError:
    return malformed(f"input {shown(name)} already exists in request")


def duplicate_output(name: str) -> OipError:
    return malformed(f"The request names output {shown(name)} twice.")


def missing_inputs(
    model: str, least: int, most: int, given: Sequence[str], missing: Sequence[str]
) -> OipError:
    """`least` and `most`: how many inputs the model takes without and with its optional ones."""
    wanted = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    return malformed(
        f"expected {wanted} but got {len(given)} inputs for model {shown(model)}. "
        f"Got input(s) {_names(given)}, but missing required input(s) {_names(missing)}. "
        "Please provide all required input(s)."
    )


def unexpected_input(name: str, model: str) -> OipError:
    return malformed(f"unexpected inference input {shown(name)} for model {shown(model)}")


def unexpected_output(name: str, model: str) -> OipError:
    return malformed(f"unexpected inference output {shown(name)} for model {shown(model)}")


def no_data(name: str, model: str) -> OipError:
    return malformed(
        f"unable to find data for input tensor {shown(name)} for model {shown(model)} in request."
    )


def contents_beside_raw(name: str, model: str) -> OipError:
    return malformed(
        "contents field must not be specified when using raw_input_contents for "
        f"{shown(name)} for model {shown(model)}"
    )


def other_contents(name: str, model: str, given: str, datatype: str) -> OipError:
    """`given` is the datatype that the typed contents hold, `datatype` the input's."""
    return malformed(
        f"unexpected explicit tensor data for input tensor {shown(name)} for model {shown(model)} "
        f"of type {shown(given)}, expected datatype {shown(datatype)}"
    )


def second_contents(name: str, model: str) -> OipError:
    return malformed(
        f"unexpected explicit tensor data for input tensor {shown(name)} for model {shown(model)}, "
        "binary data was already supplied."
    )


def other_datatype(name: str, model: str, given: str, expected: str) -> OipError:
    return malformed(
        f"inference input {shown(name)} data-type is {shown(given)}, "
        f"but model {shown(model)} expects {shown(expected)}"
    )


def no_batch_dimension(name: str, model: str) -> OipError:
    return malformed(
        f"input {shown(name)} has no shape but model requires batch dimension for {shown(model)}"
    )


def empty_batch(name: str, model: str) -> OipError:
    return malformed(f"Input {shown(name)} for model {shown(model)} has a batch of 0, but 1 is the least.")


def batches_differ(name: str, model: str) -> OipError:
    return malformed(f"input {shown(name)} batch size does not match other inputs for {shown(model)}")


def batch_too_large(most: int, model: str) -> OipError:
    return malformed(f"inference request batch-size must be <= {most} for {shown(model)}")


def other_shape(name: str, model: str, expected: Sequence[int], given: Sequence[int]) -> OipError:
    return malformed(
        f"unexpected shape for input {shown(name)} for model {shown(model)}. "
        f"Expected {_dims(expected)}, got {_dims(given)}."
    )


def other_size(name: str, model: str, expected: int, given: int) -> OipError:
    """Sizes in bytes."""
    return malformed(
        f"input byte size mismatch for input {shown(name)} for model {shown(model)}. "
        f"Expected {expected}, got {given}"
    )


def too_few_elements(name: str, model: str, expected: int, given: int) -> OipError:
    return malformed(
        f"expected {expected} string elements for inference input {shown(name)} "
        f"for model {shown(model)}, got {given}"
    )


def too_many_elements(name: str, model: str, expected: int, given: int) -> OipError:
    return malformed(
        f"unexpected number of string elements {given} for inference input {shown(name)} "
        f"for model {shown(model)}, expecting {expected}"
    )


def cut_length(name: str, model: str, left: int) -> OipError:
    """`left` bytes where the four of an element's length should be."""
    return malformed(
        f"incomplete string length indicator for inference input {shown(name)} for model {shown(model)}, "
        f"expecting 4 bytes but only {left} bytes available."
    )


def cut_element(name: str, expected: int, left: int) -> OipError:
    return malformed(
        f"incomplete string data for inference input {shown(name)}, "
        f"expecting string of length {expected} but only {left} bytes available"
    )


def raw_inputs(model: str, inputs: int) -> OipError:
    """A raw binary request for a model of other than one input."""
    return malformed(
        f"Raw request must only have 1 input to be deduced but got {inputs} inputs in {shown(model)} "
        "model configuration"
    )


def raw_shape(name: str) -> OipError:
    return malformed(
        f"The shape of the raw input {shown(name)} can not be deduced because there are more than one "
        "variable-sized dimension"
    )


def raw_bytes(name: str) -> OipError:
    return malformed(f"For BYTE datatype raw input {shown(name)}, the model must have input shape [1]")


def reserved_parameter() -> OipError:
    return malformed(
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
        "starting with 'triton_' are allowed: triton_enable_empty_final_response"
    )


def parameter_kind(key: str, expected: str) -> OipError:
    return malformed(f"invalid value type for {shown(key)} parameter, expected {expected}.")


def negative_parameter(key: str) -> OipError:
    return malformed(f"invalid value for {shown(key)}, expected value >= 0.")


def decoupled() -> OipError:
    """NOT_SERVED: one answer to a model that gives any number of them."""
    return OipError(
        Reason.NOT_SERVED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
    )


def sequence_not_started(model: str, sequence: int | str) -> OipError:
    return malformed(
        f"inference request for sequence {shown(str(sequence))} to model {shown(model)} must specify the START "
        "flag on the first request of the sequence"
    )


def not_one_response() -> OipError:
    return malformed(
        "generate expects model to produce exactly 1 response, use generate stream for model that "
        "generates various number of responses"
    )


def unfit_for_schema(name: str) -> OipError:
    return malformed(f"The schema can not convert input {shown(name)} to tensor with proper shape")


def classification(where: str) -> OipError:
    """NOT_SERVED; `where` names the output."""
    return OipError(
        Reason.NOT_SERVED, f"{where} asks for classification, which is not served: ask for the tensor."
    )


def _names(names: Sequence[str]) -> str:
    listed = [shown(name) for name in names[:MOST_LISTED]]
    if len(names) > MOST_LISTED:
        listed.append("...")
    return f"[{','.join(listed)}]"


def _dims(dims: Sequence[int]) -> str:
    listed = [str(dim) for dim in dims[:MOST_LISTED]]
    if len(dims) > MOST_LISTED:
        listed.append("...")
    return f"[{','.join(listed)}]"
