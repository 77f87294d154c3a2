"""CenterNet as ONNX and .pt2: boxes, keypoints and masks pass the gate that other families pass."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from boxwright.exporters.export import FORMATS, export
from boxwright.exporters.graph import named_outputs
from boxwright.loading.exports import open_export
from boxwright.runtime.exported import found_objects
from boxwright.types import PaddedDetections, RawDetections
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
    of_tasks = {"detection_keypoints", "detection_keypoint_scores", "detection_masks"}
    assert names & of_tasks == (of_tasks if tasks == "every" else set())


def test_keypoints_keep_their_scores_and_depths() -> None:
    """From a graph's outputs into what a file's reader returns; padding is 0."""
    torch.manual_seed(0)
    sizes, boxes = torch.tensor([[50, 80], [100, 40]]), torch.rand(2, 3, 4)
    valid = torch.tensor([[True, True, False], [True, False, False]])
    scores, depths = torch.rand(2, 3, 5), torch.rand(2, 3, 5) * 9
    found = PaddedDetections(
        boxes,
        torch.rand(2, 3),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.zeros(2, 3, dtype=torch.int64),
        valid,
        keypoints=torch.rand(2, 3, 5, 2),
        keypoint_scores=scores,
        keypoint_depths=depths,
    )
    raw = RawDetections(boxes, torch.rand(2, 3, 1), (100, 80))
    outputs = {name: one.numpy() for name, one in named_outputs(torch.zeros(2, 3, 100, 80), raw, found, sizes).items()}
    assert not outputs["detection_keypoint_scores"][0, 2:].any()
    assert not outputs["detection_keypoint_depths"][1, 1:].any()
    for number, count in enumerate((2, 1)):
        read = found_objects(outputs, number, (50, 80), None)
        np.testing.assert_array_equal(read.keypoint_scores, scores[number, :count].numpy())
        np.testing.assert_array_equal(read.keypoint_depths, depths[number, :count].numpy())
    without = {name: value for name, value in outputs.items() if "keypoint" not in name}
    assert found_objects(without, 0, (50, 80), None).keypoint_scores is None
