"""D-FINE passes the gate in every format (LiteRT: test_litert.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from boxwright.exporters.export import FORMATS, export
from boxwright.exporters.graph import DetectionGraph
from tests.d_fines import D_FINE
from tests.exporters.small_detectors import build, pictures

OWN_INITIALIZERS = True


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "openvino", "pt2"])
def test_an_export_does_what_its_detector_does(form: str, tmp_path: Path) -> None:
    detector = build(D_FINE)
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form)  # type: ignore[arg-type]
    assert report.passed
    assert "detections" in [stage.name for stage in report.stages]


def test_the_graph_has_what_the_detector_finds() -> None:
    """Pictures of any size in, the same detections out; the queries are the anchors."""
    detector = build(D_FINE).eval()
    images = torch.randint(0, 256, (2, 80, 100, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = DetectionGraph(detector)(images)
    found = detector.detect([image.numpy() for image in images])
    for number, one in enumerate(found):
        scores = outputs["detection_scores"][number]
        assert int(outputs["num_detections"][number]) == len(one.scores) == 80
        torch.testing.assert_close(scores, one.scores, rtol=1e-4, atol=1e-5)
        boxes = outputs["detection_boxes"][number][:, [1, 0, 3, 2]] * torch.tensor([100.0, 80.0] * 2)
        same = (boxes[:, None] - one.boxes).abs().amax(-1) < 0.02
        assert same.any(1).all()
        assert same.any(0).all()
