from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from boxwright.exporters.graph import INPUT
from boxwright.exporters.int8 import Quantizer, measure_errors


def convolutions(*middle: Any) -> Any:
    """Return a model of two convolutions of 1×1: the first gives `a`, nodes make `b` of it, the second reads that."""
    generator = np.random.default_rng(0)
    constants = {
        "w1": generator.normal(size=(4, 3, 1, 1)).astype(np.float32),
        "w2": generator.normal(size=(2, 4, 1, 1)).astype(np.float32),
        "border": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "nothing": np.array(-np.inf, np.float32),
        "scale": np.array(1 / 255, np.float32),
    }
    nodes = [
        helper.make_node("Cast", [INPUT], ["float"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["unit"], name="unit"),
        helper.make_node("Transpose", ["unit"], ["x"], name="first_channels", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
        *middle,
        helper.make_node("Conv", ["b", "w2"], ["c"], name="second"),
        helper.make_node("Sigmoid", ["c"], ["y"], name="probability"),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [1, 8, 8, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    return model


def images(count: int) -> list[NDArray[np.uint8]]:
    generator = np.random.default_rng(1)
    return [generator.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(count)]


def run(model: Any, image: NDArray[np.uint8], *names: str) -> list[NDArray[np.float32]]:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[NDArray[np.float32]] = session.run(None, {INPUT: image[None]})
    return found


def test_errors_are_those_of_rounding_one_tensor() -> None:
    """Worked out with NumPy for the tensor between the convolutions."""
    quantizer = Quantizer(convolutions(helper.make_node("Relu", ["a"], ["b"], name="relu")), images(6))
    whole = quantizer.quantized()
    found = {one.name: one for one in measure_errors(quantizer, whole, images(2))}
    assert set(found) == {"x", "b", "c"}
    assert found["x"].nodes == {"first"}
    assert found["b"].nodes == {"first", "relu", "second"}
    assert found["c"].nodes == {"second"}
    constants = {one.name: numpy_helper.to_array(one) for one in (*whole.graph.initializer,)}
    scale, zero = (constants[name].astype(np.float64) for name in found["b"].scale)
    weights = numpy_helper.to_array(next(one for one in quantizer.prepared.graph.initializer if one.name == "w2"))
    expected = 0.0
    for image in images(2):
        before, after = run(quantizer.prepared, image, "b", "c")
        rounded = (np.clip(np.rint(before / scale) + zero, 0, 255) - zero) * scale
        moved = np.einsum("oi,bihw->bohw", weights[:, :, 0, 0].astype(np.float64), rounded)
        expected += np.mean((moved - after) ** 2) / np.var(after) / 2
    assert found["b"].error == pytest.approx(expected, rel=1e-3)
    assert expected > 0


def test_pooling_over_an_infinite_border_stays_in_float() -> None:
    """Its range has no scale: quantized, all that the pooling returns would be 0."""
    middle = (
        helper.make_node("Pad", ["a", "border", "nothing"], ["padded"], name="pad"),
        helper.make_node("MaxPool", ["padded"], ["b"], name="pool", kernel_shape=[3, 3]),
    )
    quantizer = Quantizer(convolutions(*middle), images(6))
    assert quantizer.inside == {"first", "second"}
    (expected,), (found,) = (run(model, images(1)[0], "y") for model in (quantizer.prepared, quantizer.quantized()))
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_nodes_that_are_kept_stay_in_float() -> None:
    quantizer = Quantizer(convolutions(helper.make_node("Relu", ["a"], ["b"], name="relu")), images(6))
    model = quantizer.quantized({"second"})
    readers = {value: node for node in model.graph.node for value in node.input}
    assert readers["w2"].op_type == "Conv"
    assert "w1" not in readers
