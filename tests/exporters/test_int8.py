from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from boxwright.base.errors import ExportError
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.export import ExportDescription, export
from boxwright.exporters.graph import INPUT
from boxwright.exporters.int8 import (
    GraphLinks,
    Quantizer,
    average_precision,
    compared_accuracy,
    measure_errors,
    smallest,
)
from boxwright.runtime.sessions import open_session
from boxwright.types import Array, Detections
from tests.conftest import found_objects
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import FEW_LAYERS, build, pictures


def scores(*values: float) -> Any:
    """Return a measure that says these, one after the other, and then always the last."""
    left: Iterator[float] = chain(values, repeat(values[-1]))
    return lambda find: next(left)


@pytest.mark.slow
def test_eight_bits_between_the_convolutions(tmp_path: Path) -> None:
    detector, path = build(FEW_LAYERS), tmp_path / "int8.onnx"
    export(detector, tmp_path / "float32.onnx", images=pictures())
    report = export(detector, path, images=pictures(), accuracy=scores(0.7, 0.695), about=ExportDescription(source="s"))
    assert report.passed
    assert report.accuracy["drop"] == pytest.approx(0.005)
    metadata = open_session(path).metadata
    assert (metadata.precision, metadata.calibration) == ("int8", {"images": len(pictures()), "source": "s"})
    assert path.stat().st_size < 0.75 * (tmp_path / "float32.onnx").stat().st_size
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert kinds["QuantizeLinear"] > 20
    makers = {output: node for node in onnx.load(path).graph.node for output in node.output}
    weights = [makers.get(node.input[1]) for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    assert weights
    assert all(node is not None and node.op_type == "DequantizeLinear" for node in weights)
    gated = [stage.name for stage in report.stages if stage.gated]
    assert gated == ["preprocessing"], "what is before the first convolution stays exact"
    assert next(stage for stage in report.stages if stage.name == "preprocessing").largest < 1


@pytest.mark.slow
def test_accuracy_decides(tmp_path: Path) -> None:
    exported, path = exported_detector(), tmp_path / "int8.onnx"
    with pytest.raises(ExportError, match=r"AP fell from 0.7000 to 0.6800 \(allowed: 0.01\)"):
        export(exported.detector, path, images=pictures(), accuracy=scores(0.7, 0.68))
    assert not path.exists()
    with pytest.raises(ExportError, match="AP fell from 0.0000"):
        export(exported.detector, path, images=pictures(), accuracy=scores(0.0, 0.0))
    with pytest.raises(ExportError, match="int8 requires --format onnx"):
        export(
            exported.detector,
            tmp_path / "d.pt2",
            images=pictures(),
            format="pt2",
            accuracy=scores(1, 1),
        )


@pytest.mark.slow
def test_layers_that_cost_too_much_stay_in_float(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The whole is too bad, one tensor in float too, two are enough: then one is not tried again."""
    path = tmp_path / "int8.onnx"
    with caplog.at_level("INFO", "boxwright"):
        report = export(build(FEW_LAYERS), path, images=pictures(), accuracy=scores(0.7, 0.6, 0.68, 0.695))
    layers = report.accuracy["float32"]
    assert report.passed
    assert layers
    assert list(layers) == open_session(path).metadata.calibration["float32"]
    assert [record.message.split(" layers")[0][:14] for record in caplog.records if "AP" in record.message] == [
        "AP 0.6800 with",
        "AP 0.6950 with",
    ]
    nodes = onnx.load(path).graph.node
    plain = {node.input[1] for node in nodes if node.op_type == "Conv" and node.input[1].endswith(".weight")}
    assert {f"whole.{name}.weight" for name in layers} <= plain


def test_average_precision_is_cocos() -> None:
    import torch

    dataset = ShapesDataset(12, seed=5, size=(64, 64))
    samples = {dataset[number].image.tobytes(): dataset[number] for number in range(12)}

    def truth(images: Any) -> list[Detections[Array]]:
        sample = samples[images[0].tobytes()]
        boxes, labels = torch.from_numpy(sample.boxes), torch.from_numpy(sample.labels)
        return [found_objects(boxes, torch.ones(len(labels)), labels, (64, 64))]

    def nothing(images: Any) -> list[Detections[Array]]:
        return [found.first(0) for found in truth(images)]

    measure = average_precision(dataset)
    assert measure(truth) == pytest.approx(1)
    assert measure(nothing) == 0
    compared = compared_accuracy(measure(truth), measure(nothing))
    assert (compared["detector"], compared["export"], compared["passed"]) == (pytest.approx(1), 0, False)


@pytest.mark.parametrize("most", [1, 2, 7, 50])
def test_the_smallest_good_count(most: int) -> None:
    for least in range(1, most + 1):
        tried: list[int] = []

        def good(count: int, least: int = least, tried: list[int] = tried) -> bool:
            tried.append(count)
            return count >= least

        assert smallest(good, most) == least
        assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
        assert max(tried) <= most


def test_none_is_good() -> None:
    tried: list[int] = []
    assert smallest(lambda count: bool(tried.append(count)), 10) is None
    assert tried == [1, 2, 4, 8, 10]


def graph(*nodes: tuple[str, str, str, str]) -> Any:
    """Return an `onnx.GraphProto` of nodes: operator, name, inputs, outputs."""
    made = [helper.make_node(kind, ins.split(), outs.split(), name=name) for kind, name, ins, outs in nodes]
    return helper.make_graph(made, "g", [], [])


TWO_STAGES = graph(
    ("Cast", "cast", "image", "pixels"),
    ("Conv", "first", "pixels w1", "a"),
    ("Relu", "relu", "a", "b"),
    ("Conv", "second", "b w2", "c"),
    ("Add", "skip", "c b", "d"),
    ("Conv", "objectness", "d w3", "e"),
    ("Reshape", "rows", "e shape", "f"),
    ("Mul", "decode", "f scales", "g"),
    ("NonMaxSuppression", "select", "g f", "h"),
    ("Gather", "crop", "d h", "i"),
    ("Conv", "mask", "i w4", "j"),
    ("Sigmoid", "probability", "j", "k"),
)


def test_what_lies_between_convolutions() -> None:
    """Decoding and selecting regions lie between two convolutions, too, but compute no maps."""
    found = GraphLinks(TWO_STAGES).between_convolutions()
    assert found == {"first", "relu", "second", "skip", "objectness", "mask"}


def test_what_depends_on_nodes() -> None:
    links = GraphLinks(TWO_STAGES)
    assert links.below(["crop"]) == {"crop", "mask", "probability"}
    assert links.below(["decode", "select"]) == {"decode", "select", "crop", "mask", "probability"}
    assert links.read_by("b") == ["second", "skip"]
    assert links.read_by("k") == []


def test_what_leaves_a_part() -> None:
    links = GraphLinks(TWO_STAGES)
    assert links.leaving(links.between_convolutions()) == ["d", "e", "j"]


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
