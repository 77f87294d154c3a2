from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import onnx
import pytest

from boxwright.base.errors import ExportError
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.export import ExportDescription, export
from boxwright.exporters.int8 import average_precision, compared_accuracy
from boxwright.runtime.sessions import open_session
from boxwright.types import FoundObjects
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

    def truth(images: Any) -> list[FoundObjects]:
        sample = samples[images[0].tobytes()]
        boxes, labels = torch.from_numpy(sample.boxes), torch.from_numpy(sample.labels)
        return [found_objects(boxes, torch.ones(len(labels)), labels, (64, 64))]

    def nothing(images: Any) -> list[FoundObjects]:
        return [found.first(0) for found in truth(images)]

    measure = average_precision(dataset)
    assert measure(truth) == pytest.approx(1)
    assert measure(nothing) == 0
    compared = compared_accuracy(measure(truth), measure(nothing))
    assert (compared["detector"], compared["export"], compared["passed"]) == (pytest.approx(1), 0, False)
