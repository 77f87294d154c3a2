"""CenterNet as ONNX and .pt2: boxes, keypoints and masks pass the gate that other families pass."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from boxwright.exporters.export import FORMATS, export
from boxwright.loading.exports import open_export
from tests.center_nets import CENTER_NET, KEYPOINT_LABEL_MAP, SIZE, with_every_task
from tests.exporters.small_detectors import SQUARE, build, pictures

OWN_INITIALIZERS = True  # with which no two scores tie at 1: of equal scores an export may take another first


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize("tasks", ["boxes", "every"])
def test_an_export_does_what_its_detector_does(tasks: str, form: Literal["onnx", "pt2"], tmp_path: Path) -> None:
    label_map = tmp_path / "keypoints.pbtxt"
    label_map.write_text(KEYPOINT_LABEL_MAP)
    text = with_every_task(label_map) if tasks == "every" else CENTER_NET
    detector = build(text.replace(SIZE, SQUARE))
    assert sum(len(one.above(0.05)) for one in detector.detect(pictures())) > 20, "a gate that compares nothing"
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form, nms="operator")
    assert report.passed
    assert "detections" in [stage.name for stage in report.stages]
    names = set(open_export(path).session.output_names)
    assert {"raw_detection_boxes", "raw_detection_scores", "detection_boxes"} <= names
    assert ({"detection_keypoints", "detection_masks"} <= names) == (tasks == "every")
