"""Every family of detectors in every format: each passes its gate, or is refused for its listed reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxwright.base.errors import ExportError
from boxwright.exporters.export import FORMATS, export
from boxwright.weights.exports import open_export
from tests.exporters.small_detectors import FAMILIES, SSD, build, pictures

OWN_INITIALIZERS = True  # with which no two scores tie at 1: of equal scores an export may take another first

CELLS = [(family, "onnx", "operator") for family in FAMILIES]
CELLS += [
    (family, form, "operator")
    for family in ("ssd", "efficientdet", "refinedet", "mask_rcnn")
    for form in ("openvino", "pt2")
]
CELLS += [(family, "onnx", nms) for family in ("ssd", "align_det") for nms in ("padded", "none")]


def cell(family: str, form: str, nms: str) -> object:
    return pytest.param(family, form, nms, id=f"{family}-{form}-{nms}", marks=pytest.mark.slow)


def test_every_family_is_here() -> None:
    assert len(FAMILIES) == 20
    assert len(CELLS) == 20 + 8 + 4
    assert set(FORMATS) == {form for _, form, _ in CELLS} | {"litert"}  # test_litert.py: each family, too


@pytest.mark.parametrize(("family", "form", "nms"), [cell(*one) for one in CELLS])
def test_an_export_does_what_its_detector_does(family: str, form: str, nms: str, tmp_path: Path) -> None:
    detector = build(FAMILIES[family])
    found = detector.detect(pictures())
    assert sum(len(one.above(0.05)) for one in found) > 20, "a gate that compares nothing"
    path = tmp_path / f"detector{FORMATS[form].suffix}"
    report = export(detector, path, images=pictures(), format=form, nms=nms)  # type: ignore[arg-type]
    assert report.passed
    stages = [stage.name for stage in report.stages]
    assert ("preprocessing" in stages) == (form == "onnx")
    assert ("detections" in stages) == (nms != "none")
    session = open_export(path).session
    assert session.metadata.parity["verdict"] == "passed"
    assert session.metadata.classes() == detector.categories
    names = set(session.output_names)
    assert {"raw_detection_boxes", "raw_detection_scores"} <= names
    assert ("detection_boxes" in names) == (nms != "none")
    assert ("detection_masks" in names) == ("mask" in family)
    assert ("detection_keypoints" in names) == ("keypoints" in family)


ANY_SIZE = SSD.replace("fixed_shape_resizer { height: 64 width: 64 }", "RESIZER")
REFUSED = {
    "keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 96 }": "without pad_to_max_dimension produces inputs of any size",
    "identity_resizer { }": "identity_resizer produces inputs of any size",
    "conditional_shape_resizer { size_threshold: 64 condition: GREATER }": "conditional_shape_resizer produces inputs of any",
    "pad_to_multiple_resizer { multiple: 32 }": "pad_to_multiple_resizer produces inputs of any size",
    "fixed_shape_resizer { height: 64 width: 64 resize_method: AREA }": "a graph resizes bilinearly",
    "fixed_shape_resizer { height: 64 width: 64 resize_method: BICUBIC }": "a graph resizes bilinearly",
}


@pytest.mark.slow_except(
    "openvino-keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 96 }",
    "litert-keep_aspect_ratio_resizer { min_dimension: 64 max_dimension: 96 }",
    "pt2-fixed_shape_resizer { height: 64 width: 64 resize_method: BICUBIC }",
)
@pytest.mark.parametrize("resizer", REFUSED)
@pytest.mark.parametrize("form", FORMATS)
def test_sizes_that_follow_the_picture_are_refused(resizer: str, form: str, tmp_path: Path) -> None:
    detector = build(ANY_SIZE.replace("RESIZER", resizer))
    with pytest.raises(ExportError, match=REFUSED[resizer]):
        export(detector, tmp_path / f"d{FORMATS[form].suffix}", images=pictures(), format=form)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
