"""TF's raw outputs of one image, worked by hand; `tests/parity` compares them with the recordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.nn.postprocessing.nms import LinearLowering, Nms, PerClass
from boxwright.types import AnchorPredictions, CascadePredictions, Proposals, RawDetections, TwoStagePredictions


def found_with(raw: RawDetections) -> bw.Detections[Tensor]:
    boxes = torch.tensor([[10.0, 5.0, 30.0, 25.0], [0.0, 0.0, 40.0, 50.0]])
    return bw.Detections(boxes, torch.tensor([0.9, 0.2]), torch.tensor([1, 0]), (50, 40), raw=raw)


def test_anchors_are_in_units_of_the_padded_input_and_not_clipped() -> None:
    boxes = torch.tensor([[[-10.0, 20.0, 50.0, 200.0]], [[0.0, 0.0, 1.0, 1.0]]])
    raw = RawDetections(boxes, torch.tensor([[[0.3, 0.7]], [[0.1, 0.9]]]), (100, 50))
    outputs = found_with(raw.image(0)).to_tf()
    np.testing.assert_allclose(outputs["raw_detection_boxes"], [[0.2, -0.2, 2.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(outputs["raw_detection_scores"], [[0.3, 0.7]], rtol=1e-6)
    # Those of the detections are in units of the image, 50 pixels high and 40 wide.
    np.testing.assert_allclose(outputs["detection_boxes"], [[0.1, 0.25, 0.5, 0.75], [0, 0, 1, 1]], rtol=1e-6)


def test_regions_are_of_the_likeliest_class_clipped_to_the_image() -> None:
    of_classes = [[[0.0, 0.0, 1.0, 1.0], [4.0, -5.0, 60.0, 25.0]], [[8.0, 5.0, 16.0, 10.0], [0.0, 0.0, 0.0, 0.0]]]
    boxes = torch.tensor([[*of_classes, of_classes[0]]])
    # Background counts for nothing; the third region is padding.
    scores = torch.tensor([[[0.8, 0.05, 0.15], [0.1, 0.6, 0.3], [0.2, 0.4, 0.4]]])
    raw = RawDetections(boxes, scores, (100, 50), torch.tensor([[True, True, False]]))
    assert raw.of_regions
    outputs = found_with(raw.image(0)).to_tf()
    wanted = [[0, 0.1, 0.5, 1], [0.1, 0.2, 0.2, 0.4], [0, 0, 0, 0]]
    np.testing.assert_allclose(outputs["raw_detection_boxes"], wanted, rtol=1e-6)
    np.testing.assert_allclose(outputs["raw_detection_scores"][:2], scores[0, :2])
    assert not outputs["raw_detection_scores"][2].any()
    one_for_all = RawDetections(boxes[:, :, 1:], scores, (100, 50))
    outputs = one_for_all.image(0).to_tf(torch.tensor([50, 40]))
    np.testing.assert_allclose(outputs["raw_detection_boxes"], [wanted[0], [0, 0, 0, 0], wanted[0]], rtol=1e-6)


def test_raw_values_are_of_the_image_and_views() -> None:
    raw = RawDetections(torch.rand(2, 7, 4), torch.rand(2, 7, 3), (100, 50))
    some = found_with(raw.image(1)).above(0.5)
    assert len(some) == 1
    assert some.raw is not None
    assert some.raw.boxes.shape == (7, 4)
    assert some.raw.scores.untyped_storage().data_ptr() == raw.scores.untyped_storage().data_ptr()
    assert "raw_detection_boxes" not in replace(some, raw=None).to_tf()


def test_final_anchors_are_what_codes_refer_to() -> None:
    first = AnchorPredictions(torch.zeros(2, 5, 4), torch.zeros(2, 5, 2), torch.rand(5, 4))
    assert first.final_anchors.tolist() == [first.anchors.tolist()] * 2
    refined = replace(first, anchors=torch.rand(2, 5, 4))
    assert CascadePredictions((first, refined)).final_anchors.equal(refined.anchors)
    proposals = Proposals(torch.rand(2, 3, 4), torch.rand(2, 3), torch.ones(2, 3) > 0)
    assert TwoStagePredictions(first, proposals).final_anchors.equal(first.final_anchors)


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
