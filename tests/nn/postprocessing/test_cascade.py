"""From RefineDet's predictions to detections: where boxes start, which anchors are none, how many take part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.postprocessing.nms import BestOfClass, BestOfImage, LinearLowering, Nms, PerClass
from boxwright.pipeline import messages as m
from boxwright.types import CascadePredictions
from tests.nn.criteria.test_cascade import judge_of, refinedet_predictions

SIZES = torch.tensor([[64, 64]])


def detector_of(more: str) -> bw.Detector:
    text = f"""refinedet {{ num_classes: 2 image_resizer {{ fixed_shape_resizer {{ height: 64 width: 64 }} }} {more}
      feature_extractor {{ type: "refinedet_mobilenet_v2" depth_multiplier: 0.1 }} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def predictions_of(objectness: list[float]) -> CascadePredictions:
    """Three anchors; the first step moves each by a quarter of its size to the right, the second by as much down."""
    anchors = torch.tensor([[8.0, 8, 24, 24], [32.0, 8, 48, 24], [8.0, 32, 24, 48]])
    first, second = torch.tensor([0.0, 2.5, 0, 0]), torch.tensor([2.5, 0.0, 0, 0])
    logits = torch.zeros(1, 3, 2)
    logits[0, :, 1] = torch.logit(torch.tensor(objectness))
    return refinedet_predictions(
        second.expand(1, 3, 4),
        torch.tensor([[[0.0, 5, 0], [0.0, 0, 4], [0.0, 3, 0]]]),
        anchors,
        input_size=(64, 64),
        refinement=(first.expand(1, 3, 4), logits),
    )


def detections_of(detector: bw.Detector, predictions: CascadePredictions) -> bw.Detections[Tensor]:
    return detector.postprocess(judge_of(detector).begun(predictions), SIZES)[0]


def test_boxes_are_decoded_twice_and_filtered_anchors_are_not_detected() -> None:
    found = detections_of(detector_of("anchor_refinement { }"), predictions_of([0.9, 0.009, 0.011]))
    best = found.scores > 0.5
    assert found.boxes[best].tolist() == [[12, 12, 28, 28], [12, 36, 28, 52]]
    assert found.labels[best].tolist() == [0, 0]
    assert found.anchor_indices is not None
    assert 1 not in found.anchor_indices.tolist()
    everything = detector_of("anchor_refinement { objectness_threshold: 0 }")
    found = detections_of(everything, predictions_of([0.9, 0.009, 0.011]))
    assert found.labels[found.scores > 0.5].tolist() == [0, 1, 0]


def test_one_step_regression_starts_from_tiled_anchors() -> None:
    detector = detector_of("anchor_refinement { object_anchors: TILED }")
    found = detections_of(detector, predictions_of([0.9, 0.9, 0.9]))
    assert found.boxes[0].tolist() == [8, 12, 24, 28]


def test_scores_and_objectness_are_what_the_losses_mean() -> None:
    """Sigmoid losses: each logit by itself; the background's says nothing."""
    sigmoid = (
        """loss { classification_loss { weighted_sigmoid_focal { } } localization_loss { weighted_smooth_l1 { } } }"""
    )
    detector = detector_of(f"anchor_refinement {{ {sigmoid} objectness_threshold: 0.6 }} {sigmoid}")
    predictions = predictions_of([0.5, 0.7, 0.8])
    predictions.detection.class_logits[..., 0] = 9
    predictions.refinement.class_logits[..., 0] = 9
    found = detections_of(detector, predictions)
    best = found.scores > 0.6
    assert found.scores[best].tolist() == pytest.approx([torch.sigmoid(torch.tensor(x)).item() for x in (4.0, 3.0)])
    assert found.labels[best].tolist() == [1, 0]
    scaled = (
        "loss { classification_loss { weighted_softmax { logit_scale: 2 } } localization_loss { weighted_l2 { } } }"
    )
    scores = detector_of(scaled).postprocessor.decode(predictions_of([0.5] * 3).detection).scores  # type: ignore[attr-defined]
    assert scores[0, 0].tolist() == pytest.approx(torch.softmax(torch.tensor([0, 2.5, 0]), 0).tolist())


def test_presets() -> None:
    caffe, paper = (detector_of(f"inference_preset: {name}").postprocessor for name in ("CAFFE", "PAPER"))
    assert caffe.nms == Nms(PerClass(0.45, 500), 0.01, 500, BestOfClass(1000))  # type: ignore[attr-defined]
    assert paper.nms == Nms(PerClass(0.45, 200), 0.01, 200, BestOfImage(400))  # type: ignore[attr-defined]
    assert detector_of("").postprocessor == caffe
    coco = detector_of("inference_preset: CAFFE_COCO").postprocessor
    assert coco.nms == replace(caffe.nms, lowering=LinearLowering(0.3, 0.01))  # type: ignore[attr-defined]


def apart(count: int) -> torch.Tensor:
    """Boxes that do not meet."""
    left = 2.0 * torch.arange(count)
    return torch.stack([left, torch.zeros(count), left + 1, torch.ones(count)], -1)[None]


@pytest.mark.parametrize(("count", "kept"), [(2, 4), (5, 6)])
def test_best_of_class(count: int, kept: int) -> None:
    scores = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]])
    window = torch.tensor([[10.0, 100.0]])
    found = Nms(PerClass(0.5), candidates=BestOfClass(count))(apart(3), scores, window).image(0)
    assert len(found.scores) == kept
    assert found.scores[:2].tolist() == pytest.approx([0.9, 0.8])
    assert (found.scores.tolist()[-1] == pytest.approx(0.2)) == (count == 2)


def test_best_of_image() -> None:
    scores = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]])
    found = Nms(PerClass(0.5), candidates=BestOfImage(4))(apart(3), scores, torch.tensor([[10.0, 100.0]])).image(0)
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.3])
    assert found.labels.tolist() == [0, 0, 0, 1]
    assert found.anchors.tolist() == [0, 1, 2, 2]


def test_candidates_take_part_before_suppression_not_after() -> None:
    """The second best overlaps the best: of two candidates one is left, though a third would have been."""
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0.0, 0, 10, 9], [20.0, 0, 30, 10]]])
    scores = torch.tensor([[[0.9], [0.8], [0.7]]])
    found = Nms(PerClass(0.45), candidates=BestOfClass(2))(boxes, scores, torch.tensor([[50.0, 50.0]])).image(0)
    assert found.anchors.tolist() == [0]
