"""Small ONNX models that tests give to pools."""

from __future__ import annotations

from onnx import TensorProto, checker, helper

OPSET = 17
IR_VERSION = 8


def identity(*dims: str | int, name: str = "INPUT0") -> bytes:
    """FP32, its input as OUTPUT0. A dimension that is a text is free."""
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], ["OUTPUT0"])],
        "identity",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, list(dims))],
    )
    return _model(graph)


def doubling() -> bytes:
    """FP32 [N, 4], twice its input as OUTPUT0."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT0", "INPUT0"], ["OUTPUT0"])],
        "doubling",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["N", 4])],
    )
    return _model(graph)


def scaling(by: float) -> bytes:
    """FP32 [N, 4], its input times `by` as OUTPUT0."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["INPUT0", "by"], ["OUTPUT0"])],
        "scaling",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor("by", TensorProto.FLOAT, [1], [by])],
    )
    return _model(graph)


def counting() -> bytes:
    """INT64 TIMES [1]: multiplies matrices so often, which takes time. FP32 OUTPUT0 [256, 256]."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "state"], ["product"]),
            helper.make_node("Sigmoid", ["product"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("at", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [256, 256]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [256, 256]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["TIMES"], ["times"]),
            helper.make_node("Loop", ["times", "yes", "first"], ["OUTPUT0"], body=body),
        ],
        "counting",
        [helper.make_tensor_value_info("TIMES", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, [256, 256])],
        [
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
            helper.make_tensor("first", TensorProto.FLOAT, [256, 256], [0.01] * 256 * 256),
        ],
    )
    return _model(graph)


def _model(graph: object) -> bytes:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    checker.check_model(model, full_check=True)
    return model.SerializeToString()
