"""RF-DETR passes the gate in every format, also where its positions are resized."""

from __future__ import annotations

from pathlib import Path

import pytest

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
