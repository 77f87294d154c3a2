"""Every extractor runs on anything: no objects, odd sizes, one pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.builders.feature_extractor import _EXTRACTORS, build_feature_extractor
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.models.layers import Conv2d
from boxwright.types import Targets
from tests.conftest import SMALL_MODEL


def config(kind: str) -> bw.Pipeline:
    text = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", kind).replace(
        "depth_multiplier: 0.25", "depth_multiplier: 0.1"
    )
    if "fpn" not in kind:
        text = text.replace("fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }", "num_layers: 3")
    return parse_message(text, bw.Pipeline)


KINDS = [*_EXTRACTORS, "timm/test_resnet.r160_in1k"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depthwise", [True, False])
def test_trains_and_detects_on_nothing(kind: str, depthwise: bool) -> None:
    pipeline = config(kind)
    assert pipeline.model is not None
    assert pipeline.model.ssd is not None
    assert pipeline.model.ssd.feature_extractor is not None
    pipeline.model.ssd.feature_extractor.use_depthwise = depthwise
    detector = bw.build_detector(pipeline)
    assert not detector.training
    detector.train()
    inputs, _ = detector.preprocess(torch.randint(0, 255, (2, 50, 70, 3)))
    predictions = detector.predict(inputs)
    assert predictions.box_codes.shape[:2] == predictions.class_logits.shape[:2] == (2, len(predictions.anchors))
    assert predictions.class_logits.shape[2] == 5
    nothing = Targets(
        torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0), torch.zeros(2, 0) > 0
    )
    total = sum(detector.criterion(predictions, nothing).values()) + detector.regularization()
    total.backward()
    assert torch.isfinite(total)
    images = [
        np.zeros((1, 1, 3), np.uint8),
        np.zeros((90, 3, 3), np.uint8),
        torch.zeros(3, 40, 30),
        np.zeros((8, 8), np.uint8),
    ]
    found = detector.detect(images)
    assert [one.image_size for one in found] == [(1, 1), (90, 3), (40, 30), (8, 8)]
    assert detector.training, "the mode is left as it was"


@pytest.mark.parametrize("image", [np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(3, np.uint8)])
def test_detect_refuses_what_is_no_image(image: np.ndarray) -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_fpn_keras"))
    with pytest.raises(ValueError, match="image 0: expected a HWC array"):
        detector.detect([image])


def test_detect_does_not_depend_on_the_batch() -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_keras"))
    images = [np.random.default_rng(i).integers(0, 255, (40 + i, 50, 3), np.uint8) for i in range(3)]
    together, apart = detector.detect(images), [detector.detect([image])[0] for image in images]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.scores, other.scores)
        torch.testing.assert_close(one.boxes, other.boxes)


@pytest.mark.parametrize("size", [(7, 7), (8, 9), (1, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding(size: tuple[int, int], stride: int) -> None:
    """Against TF's rule, worked out by padding first and convolving without."""
    conv = Conv2d(2, 3, 3, stride=stride)
    inputs = torch.randn(1, 2, *size)
    pads = []
    for side in reversed(size):
        total = max((-(-side // stride) - 1) * stride + 3 - side, 0)
        pads += [total // 2, total - total // 2]
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(inputs, pads), conv.weight, stride=stride)
    torch.testing.assert_close(conv(inputs), expected)
    assert conv(inputs).shape[-2:] == tuple(-(-side // stride) for side in size)


def test_frozen_normalization_keeps_its_statistics() -> None:
    text = 'type: "ssd_mobilenet_v1" depth_multiplier: 0.1 num_layers: 2 conv_hyperparams { batch_norm { } }'
    extractor = build_feature_extractor(parse_message(text, m.SsdFeatureExtractor), frozen_norm=True)
    extractor.backbone.train()
    before = {k: v.clone() for k, v in extractor.backbone.state_dict().items() if "running" in k}
    extractor.backbone(torch.randn(2, 3, 32, 32))
    after = extractor.backbone.state_dict()
    assert before
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_levels_must_fit_the_anchors() -> None:
    text = SMALL_MODEL.replace("max_level: 5 anchor_scale", "max_level: 6 anchor_scale")
    with pytest.raises(bw.ConfigError, match="3 levels, the anchor generator 4"):
        bw.build_detector(parse_message(text, bw.Pipeline))


def test_network_compiles_without_graph_breaks_in_the_criterion() -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_fpn_keras"))
    inputs, _ = detector.preprocess(torch.zeros(1, 64, 64, 3))
    with torch.no_grad():
        predictions = detector.predict(inputs)
    targets = Targets(torch.tensor([[[1.0, 1, 20, 20]]]), torch.tensor([[1]]), torch.ones(1, 1), torch.ones(1, 1) > 0)
    explained = torch._dynamo.explain(lambda t: detector.criterion(predictions, t)["Loss/classification_loss"])(targets)
    assert explained.graph_break_count == 0
