"""RF-DETR passes the gate in every format, also where its positions are resized."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto

from boxwright.exporters.export import FORMATS, export
from tests.exporters.small_detectors import build, pictures
from tests.rf_detrs import RF_DETR

OWN_INITIALIZERS = True


@pytest.mark.slow
@pytest.mark.parametrize("grid", [8, 6])
@pytest.mark.parametrize("form", ["onnx", "openvino", "pt2"])
def test_an_export_does_what_its_detector_does(form: str, grid: int, tmp_path: Path) -> None:
    detector = build(RF_DETR.replace("grid: 8", f"grid: {grid}"))
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form)  # type: ignore[arg-type]
    assert report.passed
    assert "detections" in [stage.name for stage in report.stages]


@pytest.mark.slow
def test_normalization_stays_in_float32_with_float16(tmp_path: Path) -> None:
    """Tokens whose squares float16 cannot hold: a normalization in float16 would return zeros or NaN."""
    detector = build(RF_DETR)
    largest = []
    with torch.no_grad():
        detector.network.get_parameter("backbone.blocks.0.scale2").fill_(1e5)
    norm = detector.network.get_submodule("backbone.blocks.1.norm1")
    hook = norm.register_forward_pre_hook(lambda _, args: largest.append(float(args[0].abs().max())))
    detector.eval().detect(pictures())
    hook.remove()
    assert max(largest) ** 2 > torch.finfo(torch.float16).max
    path = tmp_path / "half.onnx"
    report = export(detector, path, images=pictures(), precision="float16", allow_difference=True)
    # Untrained scores are nearly equal, so that queries exchange places.
    assert report.accuracy["export"] >= 0.9
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    of = {
        kind: {types[node.output[0]] for node in graph.node if node.op_type == kind}
        for kind in ("LayerNormalization", "Softmax", "MatMul")
    }
    assert of["LayerNormalization"] == of["Softmax"] == {TensorProto.FLOAT}
    assert TensorProto.FLOAT16 in of["MatMul"]
