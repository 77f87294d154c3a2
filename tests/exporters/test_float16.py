"""Layers in float16: which nodes of a graph they are, and that the graph still computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from boxwright.base.errors import ExportError
from boxwright.exporters.float16 import measure_agreement, to_float16
from boxwright.exporters.graph import INPUT, PREPROCESSED
from boxwright.types import Array, Detections

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> NDArray[np.float32]:
    return np.asarray(RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:])), np.float32)


def graph(nodes: list[Any], constants: dict[str, NDArray[Any]], outputs: list[str]) -> Any:
    """A model from pictures [1, 8, 8, 3] to float32 outputs; preprocessing scales and transposes."""
    first = [
        helper.make_node("Cast", [INPUT], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "scale"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], [PREPROCESSED], perm=[0, 3, 1, 2]),
    ]
    constants = {"scale": np.array(1 / 255, np.float32), **constants}
    made = helper.make_graph(
        first + nodes,
        "test",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [1, 8, 8, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def run(model: Any, picture: NDArray[np.uint8]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, {INPUT: picture})
    return outputs


def types(model: Any) -> dict[str, int]:
    """The type of each value that nodes make, by onnx's own inference."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    known = (*inferred.graph.value_info, *inferred.graph.output)
    return {value.name: value.type.tensor_type.elem_type for value in known}


PICTURE = RANDOM.integers(0, 256, (1, 8, 8, 3), np.uint8)
NODES = [
    helper.make_node("Conv", [PREPROCESSED, "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
    helper.make_node("Clip", ["c1", "low", "high"], ["r1"]),
    helper.make_node("Pad", ["r1", "border", "low"], ["p1"]),
    helper.make_node("Conv", ["p1", "w2"], ["c2"]),
    helper.make_node("InstanceNormalization", ["c2", "one", "zero"], ["n2"]),
    helper.make_node("Relu", ["n2"], ["r2"]),
    helper.make_node("Conv", ["r2", "w2"], ["c3"]),
    helper.make_node("Add", ["c3", "c2"], ["sum"]),
    helper.make_node("Resize", ["sum", "", "twice"], ["large"], mode="nearest"),
    helper.make_node("Conv", ["large", "w3"], ["c4"]),
    helper.make_node("Reshape", ["c4", "rows"], ["rows4"]),
    helper.make_node("Sigmoid", ["rows4"], ["scores"]),
    helper.make_node("MatMul", ["rows4", "linear"], ["boxes_in_cells"]),
    helper.make_node("Mul", ["boxes_in_cells", "cell"], ["boxes"]),
    helper.make_node("Softmax", ["rows4"], ["distribution"]),
    helper.make_node("MatMul", ["distribution", "distances"], ["sides"]),
]
CONSTANTS = {
    "w1": weights(4, 3, 3, 3), "b1": weights(4, 1)[:, 0], "w2": weights(4, 4, 1, 1), "w3": weights(6, 4, 1, 1),
    "low": np.array(0, np.float32), "high": np.array(6, np.float32), "one": np.ones(4, np.float32),
    "zero": np.zeros(4, np.float32), "twice": np.array([1, 1, 2, 2], np.float32), "rows": np.array([1, 400, 6]), "border": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "linear": weights(6, 4), "cell": np.array(640, np.float32), "distances": np.arange(6, dtype=np.float32)[:, None],
}  # fmt: skip
OUTPUTS = ["scores", "boxes", "sides"]


def test_layers_and_what_lies_between_them_are_in_float16() -> None:
    """Preprocessing, what reads pixels, normalization, softmax, decoding and outputs are in float32; worked out by hand."""
    kinds = types(to_float16(graph(NODES, CONSTANTS, OUTPUTS)))
    half = {name for name, kind in kinds.items() if kind == TensorProto.FLOAT16}
    made = {name.removesuffix(".float16") for name in half}
    layers = {"c2", "c3", "c4", "boxes_in_cells"}
    between = {"sum", "large", "rows4"}
    cast = {"p1", "r2"}  # for the layers that read them
    assert made == layers | between | cast
    for name in ("scaled", PREPROCESSED, "c1", "r1", "n2", "r2", "scores", "boxes", "distribution", "sides"):
        assert kinds[name] == TensorProto.FLOAT


def test_the_graph_computes_the_same_with_half_the_weights() -> None:
    model = graph(NODES, CONSTANTS, OUTPUTS)
    before = model.SerializeToString()
    converted = to_float16(model)
    assert model.SerializeToString() == before
    for expected, actual in zip(run(model, PICTURE), run(converted, PICTURE), strict=True):
        assert actual.dtype == np.float32
        assert 0 < np.abs(actual - expected).max() < 5e-3 * np.abs(expected).max()
    stored = {tensor.name: tensor.data_type for tensor in converted.graph.initializer}
    halves = {"w2", "w3", "linear"}
    assert {name for name, kind in stored.items() if kind == TensorProto.FLOAT16} == {f"{n}.float16" for n in halves}
    assert stored.keys() & halves == set(), "no weight is stored twice"


def test_weights_beyond_float16_and_transposed_ones() -> None:
    large = {**CONSTANTS, "w2": np.full((4, 4, 1, 1), 7e4, np.float32), "turned": CONSTANTS["linear"].T.copy()}
    nodes = [
        helper.make_node("Transpose", ["turned"], ["linear_t"], perm=[1, 0]),
        *NODES[:12],
        helper.make_node("MatMul", ["rows4", "linear_t"], ["boxes"]),
    ]
    converted = to_float16(graph(nodes, large, ["scores", "boxes"]))
    stored = {tensor.name for tensor in converted.graph.initializer}
    assert {"w2", "linear_t.float16"} <= stored
    assert not stored & {"w2.float16", "turned", "linear_t"}


def test_a_graph_without_layers_is_refused() -> None:
    with pytest.raises(ExportError, match="no layer that could compute in float16"):
        to_float16(graph([helper.make_node("Squeeze", [PREPROCESSED], ["scores"])], {}, ["scores"]))


def detections(*rows: tuple[float, float, int]) -> Detections[Array]:
    """Boxes of 100 pixels that begin at some x, with scores and labels."""
    boxes = np.array([[x, 0, x + 100, 100] for x, _, _ in rows], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score, _ in rows], np.float32)
    return Detections(boxes, scores, np.array([label for *_, label in rows], np.int64), (200, 400))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(0, 0.9, 0), (150, 0.5, 1)], 1.0),
        ([(5, 0.87, 0), (150, 0.5, 1)], 1.0),  # an IoU of 95/105
        ([(6, 0.9, 0), (150, 0.5, 1)], 0.5),  # 94/106: one of two, on both sides
        ([(0, 0.84, 0), (150, 0.5, 1)], 0.5),
        ([(0, 0.9, 1), (150, 0.5, 1)], 0.5),
        ([(0, 0.9, 0), (150, 0.5, 1), (20, 0.05, 0)], 1.0),  # too low to count
        ([(0, 0.9, 0), (150, 0.5, 1), (40, 0.7, 0), (60, 0.7, 0)], 4 / 6),
        ([], 0.0),
    ],
)
def test_agreement_is_the_share_that_both_have(found: list[tuple[float, float, int]], expected: float) -> None:
    own = detections((0, 0.9, 0), (150, 0.5, 1))
    measure = measure_agreement(lambda images: [own for _ in images], [PICTURE[0]])
    assert measure(lambda images: [detections(*found) for _ in images]) == pytest.approx(expected)


def test_nothing_found_agrees_with_nothing() -> None:
    measure = measure_agreement(lambda images: [detections((0, 0.05, 0))], [PICTURE[0]])
    assert measure(lambda images: [detections((0, 0.05, 0))]) == 0
