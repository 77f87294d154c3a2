"""Linear lowering of scores after suppression, against cases worked by hand."""

from __future__ import annotations

import pytest
import torch

from boxwright.nn.postprocessing.nms import LinearLowering, Nms, PerClass

WINDOW = torch.tensor([[100.0, 100.0]])
# The first two overlap by 60 / 140, the second and third by 60 / 140, the first and third by 20 / 180.
ROW = torch.tensor([[[0.0, 0, 10, 10], [0.0, 4, 10, 14], [0.0, 8, 10, 18]]])
OVERLAP = 60 / 140


def lowering(iou: float, score: float, suppression: float = 0.99) -> Nms:
    return Nms(PerClass(suppression), 0.01, lowering=LinearLowering(iou, score))


def test_scores_fall_in_the_order_that_they_have_after_each_lowering() -> None:
    """The second falls from .9 to .514, so that the third, at .6, is chosen before it and lowers it again."""
    scores = torch.tensor([[[0.95], [0.9], [0.6]]])
    found = lowering(0.3, 0.01)(ROW, scores, WINDOW).image(0)
    assert found.anchors.tolist() == [0, 2, 1]
    assert found.scores.tolist() == pytest.approx([0.95, 0.6, 0.9 * (1 - OVERLAP) ** 2])
    assert torch.equal(found.boxes, ROW[0][[0, 2, 1]])


def test_a_second_that_stays_better_lowers_the_third() -> None:
    scores = torch.tensor([[[0.95], [0.9], [0.5]]])
    found = lowering(0.3, 0.01)(ROW, scores, WINDOW).image(0)
    lowered = 0.9 * (1 - OVERLAP)
    assert found.scores.tolist() == pytest.approx([0.95, lowered, 0.5 * (1 - OVERLAP)])


def test_small_overlaps_and_other_classes_lower_nothing() -> None:
    scores = torch.tensor([[[0.9, 0.0], [0.0, 0.8], [0.7, 0.0]]])
    found = lowering(0.3, 0.01)(ROW, scores, WINDOW).image(0)
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7])
    assert found.labels.tolist() == [0, 1, 0]


def test_what_is_lowered_below_the_threshold_is_dropped_and_suppression_comes_first() -> None:
    scores = torch.tensor([[[0.95], [0.5], [0.1]]])
    found = lowering(0.3, 0.3)(ROW, scores, WINDOW).image(0)
    assert found.anchors.tolist() == [0]
    suppressed = lowering(0.05, 0.01, 0.4)(ROW, scores, WINDOW).image(0)
    assert suppressed.anchors.tolist() == [0, 2]
    assert suppressed.scores.tolist() == pytest.approx([0.95, 0.1 * (1 - 20 / 180)])


def test_an_image_without_detections() -> None:
    found = lowering(0.3, 0.01)(ROW, torch.zeros(1, 3, 1), WINDOW).image(0)
    assert found.boxes.shape == (0, 4)
    assert found.labels.dtype == torch.int64
