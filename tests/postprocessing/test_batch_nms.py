from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from boxwright.builders.post_processing import build_nms, build_score_converter
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.errors import ConfigError
from boxwright.postprocessing.batch_nms import BatchNms
from tests.conftest import Components, assert_close, xyxy, yxyx

CASES = ("post_processing/0", "post_processing/1", "post_processing/5")


@pytest.mark.parametrize("case", CASES)
def test_recorded_post_processing(components: Components, case: str) -> None:
    config = parse_message(components.cases[case]["text"], m.PostProcessing)
    assert config.batch_non_max_suppression is not None
    logits = torch.from_numpy(components.array(case, "in/logits"))
    scores = build_score_converter(config)(logits)
    assert_close(scores, components.array(case, "out/scores_converted"))
    windows = components.array(case, "in/clip_window")
    boxes = xyxy(components.array(case, "in/boxes")[:, :, 0])
    kept = build_nms(config.batch_non_max_suppression)(boxes, scores, torch.from_numpy(windows[:, 2:]))
    for image, found in enumerate(kept):
        count = int(components.array(case, "out/num_detections")[image])
        assert len(found.scores) == count
        assert_close(found.scores, components.array(case, "out/nmsed_scores")[image, :count])
        assert found.labels.tolist() == components.array(case, "out/nmsed_classes")[image, :count].tolist()
        # The recording has boxes in the frame of the window; ours stay in pixels.
        height, width = windows[image, 2:]
        expected = components.array(case, "out/nmsed_boxes")[image, :count] * np.array([height, width, height, width])
        assert_close(yxyx(found.boxes), expected)


def exhaustive(
    boxes: torch.Tensor, scores: torch.Tensor, settings: BatchNms, window: torch.Tensor
) -> list[tuple[float, int, int]]:
    """Suppress class by class over everything: TF's procedure, written out."""
    rows = []
    for label in range(scores.shape[1]):
        above = torch.nonzero(scores[:, label] > settings.score_threshold).flatten()
        kept = above[nms(boxes[above], scores[above, label], settings.iou_threshold)][
            : settings.max_detections_per_class
        ]
        for anchor in kept.tolist():
            box = boxes[anchor].clamp(min=0)
            box = torch.minimum(box, window.flip(0).repeat(2))
            if (box[2] - box[0]) * (box[3] - box[1]) > 0:
                rows.append((scores[anchor, label].item(), label, anchor))
    return sorted(rows, key=lambda row: -row[0])[: settings.max_total_detections]


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_exhaustive_computation(seed: int) -> None:
    """Over twenty thousand candidates, of which the first few thousand are tried first."""
    generator = torch.Generator().manual_seed(seed)
    corner, side = torch.rand(2000, 2, generator=generator) * 300 - 10, torch.rand(2000, 2, generator=generator) * 60
    boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(2000, 12, generator=generator)
    window = torch.tensor([200.0, 260.0])
    settings = BatchNms(0.01, 0.3 + 0.1 * seed, 5 + 20 * seed, 50 + 300 * seed)
    (found,) = settings(boxes[None], scores[None], window[None])
    expected = exhaustive(boxes, scores, settings, window)
    assert list(zip(found.scores.tolist(), found.labels.tolist(), found.anchors.tolist(), strict=True)) == expected


def test_nothing_above_the_threshold() -> None:
    (found,) = BatchNms(0.5)(torch.rand(1, 10, 4), torch.zeros(1, 10, 3), torch.ones(1, 2))
    assert found.boxes.shape == (0, 4)
    assert found.labels.dtype == torch.int64


def test_contradictory_caps() -> None:
    config = m.BatchNonMaxSuppression(max_detections_per_class=10, max_total_detections=5)
    with pytest.raises(ConfigError, match="max_detections_per_class 10 is over max_total_detections 5"):
        build_nms(config)
