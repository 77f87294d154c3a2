"""RF-DETR's masks pass the gate in every format, and an exported detector pastes them as its detector does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.exporters.export import FORMATS, export
from tests.exporters.small_detectors import build, pictures
from tests.rf_detrs import RF_DETR_MASKS

OWN_INITIALIZERS = True


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "openvino", "pt2"])
def test_an_export_has_the_masks_of_its_detector(form: str, tmp_path: Path) -> None:
    detector = build(RF_DETR_MASKS)
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form)  # type: ignore[arg-type]
    assert report.passed
    picture = pictures()[0]
    (expected,) = detector.detect([torch.as_tensor(picture).permute(2, 0, 1)])
    result = bw.load(path)(picture, conf=0.0)
    assert result.masks is not None
    assert result.masks.shape == (len(expected), *picture.shape[:2])
    masks = bw.instance_masks(expected).numpy()
    assert 0.05 < masks.mean() < 0.95
    # Detections of equal scores may swap; a pixel at a mask's border may differ by rounding.
    same = [np.abs(result.masks.astype(int) - mask).mean((1, 2)).min() for mask in masks]
    assert max(same) < 0.01
