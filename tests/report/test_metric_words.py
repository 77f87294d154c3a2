"""What a page says of metrics: of boxes, masks and keypoints each what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from boxwright.report.metric_words import readable_name, sentence
from boxwright.report.sources import source_of_files
from boxwright.report.write import write_report
from tests.report import made

A = (10, 10, 20, 20)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DetectionBoxes_Precision/mAP", "COCO's headline number"),
        ("DetectionBoxes_Precision/mAP@.50IOU", "half of the area"),
        ("DetectionMasks_Precision/mAP", "areas of masks, not of boxes"),
        ("DetectionMasks_Precision/mAP (small)", "areas of masks, not of boxes"),
        ("DetectionMasks_Recall/AR@100", "areas of masks, not of boxes"),
        ("DetectionMasks_AP50", "areas of masks, not of boxes"),
        ("Keypoints_Precision/mAP ByCategory/figure", "mean over similarities (OKS)"),
        ("Keypoints_Precision/mAP@.75IOU ByCategory/figure", "(OKS) of 0.75 is enough"),
        ("Keypoints_Precision/mAP (medium) ByCategory/figure", "on medium objects"),
        ("Keypoints_Recall/AR@1 ByCategory/figure", "whose keypoints are found"),
    ],
)
def test_sentences(name: str, words: str) -> None:
    assert words in sentence(name)
    assert ("mask" in sentence(name)) == ("Masks" in name)
    assert ("area" in sentence(name)) <= ("Boxes" in name or "Masks" in name)


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("DetectionBoxes_Precision/mAP", "AP"),
        ("DetectionBoxes_Precision/mAP@.50IOU", "AP50"),
        ("DetectionMasks_Precision/mAP@.75IOU", "mask AP75"),
        ("DetectionBoxes_Precision/mAP (small)", "AP of small objects"),
        ("DetectionBoxes_Recall/AR@1", "AR with 1 detection"),
        ("DetectionBoxes_Recall/AR@100", "AR with 100 detections"),
        ("DetectionBoxes_Recall/AR@100 (large)", "AR of large objects"),
        ("DetectionBoxes_PerformanceByCategory/mAP/traffic light", "AP of traffic light"),
        ("Keypoints_Precision/mAP ByCategory/figure", "keypoint AP of figure"),
        ("Keypoints_Precision/mAP@.75IOU ByCategory/figure", "keypoint AP75 of figure"),
        ("Keypoints_Precision/mAP (medium) ByCategory/figure", "keypoint AP of medium objects, figure"),
        ("Loss/total_loss", "total loss"),
        ("Loss/BoxClassifierLoss/localization_loss", "localization loss"),
        # Those of other protocols have no shorter name that says which protocol they are of.
        ("PascalBoxes_Precision/mAP@0.5IOU", "PascalBoxes_Precision/mAP@0.5IOU"),
        ("DetectionBoxes_AP50", "DetectionBoxes_AP50"),
        ("anything else", "anything else"),
    ],
)
def test_names_for_people(name: str, readable: str) -> None:
    assert readable_name(name) == readable


def test_masks_and_keypoints_have_their_metrics_on_the_page(tmp_path: Path) -> None:
    """In the summary, and a column of the classes; a class without them has none, and boxes are said to be matched."""
    content = made.truth([(60, 50)] * 2, [(0, 0, A), (1, 1, A)], ["person", "cat"])
    content["annotations"][0]["keypoints"] = [12, 13, 2]
    rows = made.found([(0, 0, A, 0.9), (1, 1, A, 0.8)])
    source = source_of_files(*made.write(tmp_path, content, rows))
    metrics: dict[str, float | None] = {
        "DetectionBoxes_Precision/mAP": 1.0,
        "DetectionBoxes_PerformanceByCategory/mAP/cat": 1.0,
        "DetectionMasks_PerformanceByCategory/mAP/person": 0.3125,
        "DetectionMasks_PerformanceByCategory/mAP/cat": -1.0,
        "Keypoints_Precision/mAP ByCategory/person": 0.4375,
    }
    write_report(replace(source, metrics=metrics), tmp_path / "r")
    numbers = json.loads((tmp_path / "r" / "report.json").read_text())
    assert list(numbers["metrics"]) == ["DetectionBoxes_Precision/mAP", "Keypoints_Precision/mAP ByCategory/person"]
    assert [(row["name"], row["ap_of_masks"], row["ap_of_keypoints"]) for row in numbers["classes"]] == [
        ("person", 0.3125, 0.4375),
        ("cat", None, None),
    ]
    page = (tmp_path / "r" / "index.html").read_text()
    assert "<th>AP of masks</th><th>AP of keypoints</th>" in page
    assert "matches boxes" in page
    write_report(source_of_files(*made.write(tmp_path, made.truth([(60, 50)], [(0, 0, A)], ["a"]), [])), tmp_path / "r")
    page = (tmp_path / "r" / "index.html").read_text()
    assert "AP of masks" not in page
    assert "matches boxes" not in page
