"""One training step and one inference of an SSD, which `threads.py` times: random images with eight boxes each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.messages import DetectionModel
from boxwright.types import Targets

PYRAMID = """
anchor_generator { multiscale_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5] } }
box_predictor { weight_shared_convolutional_box_predictor {
  depth: 128 num_layers_before_predictor: 4 use_depthwise: true share_prediction_tower: true
  conv_hyperparams { activation: RELU_6 batch_norm { } } } }
"""
COMMON = """
ssd {
  num_classes: 90
  image_resizer { fixed_shape_resizer { height: SIZE width: SIZE } }
  feature_extractor { type: "TYPE" use_depthwise: true EXTRA conv_hyperparams { activation: RELU_6 batch_norm { } } }
  box_coder { faster_rcnn_box_coder { } }
  similarity_calculator { iou_similarity { } }
  matcher { argmax_matcher { force_match_for_each_row: true } }
  loss { classification_loss { weighted_sigmoid_focal { alpha: 0.25 } } localization_loss { weighted_smooth_l1 { } } }
  post_processing { batch_non_max_suppression { score_threshold: 0.01 } score_converter: SIGMOID }
  encode_background_as_zeros: true
  HEAD
}
"""

Model = tuple[Callable[[int], Any], Callable[[int], Any]]


def ours(kind: str, size: int, head: str, extra: str, device: str) -> Model:
    """Build one of ours.

    Args:
        kind: The feature extractor's type.
        size: The side of the input.
        head: Anchors and box predictor.
        extra: More of the feature extractor.
        device: Where it runs.

    Returns:
        A training step and an inference, as functions of the batch size.
    """
    text = COMMON.replace("SIZE", str(size)).replace("TYPE", kind).replace("EXTRA", extra).replace("HEAD", head)
    detector = build_detector(parse_message(text, DetectionModel))
    detector.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(detector.parameters(), 1e-4, momentum=0.9)

    def train(batch: int) -> None:
        detector.train()
        images, boxes = samples(batch, size, device)
        labels = torch.ones(batch, 8, dtype=torch.int64, device=device)
        targets = Targets(boxes, labels, torch.ones(batch, 8, device=device), labels > 0)
        losses = detector.criterion(
            detector.predict(detector.preprocessor.normalize(images, torch.full((batch, 2), size))), targets
        )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(LossTerm.sum(losses))
        optimizer.step()

    def detect(batch: int) -> None:
        images, _ = samples(batch, size, device)
        detector.detect(list(images))

    return train, detect


def samples(batch: int, size: int, device: str) -> tuple[Tensor, Tensor]:
    """Make random images with eight boxes each.

    Args:
        batch: How many.
        size: Their side.
        device: Where.

    Returns:
        uint8 [B, 3, size, size], and float [B, 8, 4].
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (batch, 3, size, size), dtype=torch.uint8, generator=generator)
    boxes = torch.rand(batch, 8, 4, generator=generator) * size / 2
    boxes[..., 2:] += boxes[..., :2] + 8
    return images.to(device), boxes.to(device)
