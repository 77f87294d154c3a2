"""Group normalization as TF-Slim has it, worked by hand: no recording holds it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.nn.batch_norm import GroupNormSettings, make_norm
from boxwright.nn.heads.convolutional import WeightSharedHead
from boxwright.nn.ssd import SSD
from boxwright.pipeline import messages as m
from boxwright.weights.tensorflow.variables import tf1_variables

GROUPS = "conv_hyperparams { activation: RELU_6 group_norm { } }"
HEAD = "convolutional_box_predictor { min_depth: 64 max_depth: 64 num_layers_before_predictor: 1 CONV }"
SHARED = """weight_shared_convolutional_box_predictor { depth: 64 num_layers_before_predictor: 1 CONV }"""
MODEL = """
ssd {
  num_classes: 3
  image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
  feature_extractor { type: "TYPE" depth_multiplier: 0.5 min_depth: 8 OVERRIDE CONV }
  anchor_generator { ssd_anchor_generator { num_layers: 6 aspect_ratios: 1.0 reduce_boxes_in_lowest_layer: false } }
  box_predictor { HEAD }
  box_coder { faster_rcnn_box_coder { } }
  matcher { argmax_matcher { } }
  similarity_calculator { iou_similarity { } }
  loss { classification_loss { weighted_sigmoid { } } localization_loss { weighted_smooth_l1 { } } }
  post_processing { batch_non_max_suppression { } }
}
"""


def detector(kind: str = "ssd_mobilenet_v1", head: str = HEAD, conv: str = GROUPS, override: str = "") -> bw.Detector:
    text = MODEL.replace("HEAD", head).replace("CONV", conv).replace("TYPE", kind).replace("OVERRIDE", override)
    return bw.build_detector(parse_message(text, m.DetectionModel, file="f"))


def network(head: str = HEAD, conv: str = GROUPS) -> SSD:
    found = detector(head=head, conv=conv).network
    assert isinstance(found, SSD)
    return found


def test_each_group_of_an_image_by_hand() -> None:
    """Two channels a group: mean and population variance over both channels and all cells; epsilon is 1e-6."""
    values = np.random.default_rng(0).normal(2, 3, (2, 64, 3, 5)).astype(np.float32)
    norm = make_norm(64, GroupNormSettings())
    assert isinstance(norm, nn.GroupNorm)
    with torch.no_grad():
        norm.weight.copy_(torch.arange(64.0))
        norm.bias.fill_(0.5)
        found = norm(torch.from_numpy(values)).numpy()
    expected = np.empty_like(values)
    for image in range(2):
        for first in range(0, 64, 2):
            group = values[image, first : first + 2].astype(np.float64)
            scaled = (group - group.mean()) / np.sqrt(((group - group.mean()) ** 2).mean() + 1e-6)
            expected[image, first : first + 2] = scaled * np.arange(first, first + 2)[:, None, None] + 0.5
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)
    single = make_norm(32, GroupNormSettings())
    assert single(torch.rand(1, 32, 1, 1)).abs().max() < 1e-4, "the bias, up to rounding over epsilon's root"


def test_tf1_normalizes_extra_maps_and_the_predictor() -> None:
    ssd = network()
    assert not any(isinstance(layer, nn.GroupNorm) for layer in ssd.backbone.modules())
    for part, convolutions in ((ssd.neck, 8), (ssd.head.shared, 6)):
        norms = [layer for layer in part.modules() if isinstance(layer, nn.GroupNorm)]
        convs = [layer for layer in part.modules() if isinstance(layer, nn.Conv2d)]
        assert len(norms) == len(convs) == convolutions
        assert all(conv.bias is None for conv in convs), "a normalized convolution has no bias"
    names = {variable.key for variable in tf1_variables(ssd).named.values()}
    assert "BoxPredictor_0/Conv2d_0_1x1_64/GroupNorm/gamma" in names
    extra = "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise_1_Conv2d_2_1x1_128/"
    assert {f"{extra}weights", f"{extra}GroupNorm/gamma", f"{extra}GroupNorm/beta"} <= names
    assert not [name for name in names if "GroupNorm/moving" in name]


def test_tf1s_shared_predictor_knows_batch_norm_alone() -> None:
    head = network(head=SHARED).head
    assert isinstance(head, WeightSharedHead)
    layers = list(head.modules())
    assert not any(isinstance(layer, nn.GroupNorm | nn.BatchNorm2d) for layer in layers)
    assert all(layer.bias is not None for layer in head.box_tower.modules() if isinstance(layer, nn.Conv2d))


def test_it_learns() -> None:
    found = detector().train()
    inputs, sizes = found.preprocess(torch.rand(1, 64, 64, 3) * 255)
    predictions = found.predict(inputs, sizes)
    (predictions.box_codes.sum() + predictions.class_logits.square().sum()).backward()
    norm = next(layer for layer in found.network.modules() if isinstance(layer, nn.GroupNorm))
    assert norm.weight.grad is not None
    assert norm.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("kind", "override", "reason"),
    [
        (
            "ssd_mobilenet_v2_keras",
            "",
            "TF2 ignores it, and its layers are not normalized; use batch_norm, or remove it",
        ),
        (
            "ssd_mobilenet_v1",
            "override_base_feature_extractor_hyperparams: true",
            "TF1 normalizes the backbone by groups",
        ),
        ("ssd_inception_v2", "", "TF1 normalizes the backbone by groups"),
    ],
)
def test_where_it_is_refused(kind: str, override: str, reason: str) -> None:
    with pytest.raises(
        bw.ConfigError, match=rf"f:\d+:\d+: model.ssd.feature_extractor.conv_hyperparams.group_norm: {reason}"
    ) as found:
        detector(kind, override=override)
    assert len(str(found.value).splitlines()) == 1


def test_channels_that_do_not_divide() -> None:
    head = HEAD.replace("64", "48")
    with pytest.raises(
        bw.ConfigError,
        match=r"f:\d+:\d+: model.ssd.box_predictor.*group_norm: a layer's 48 channels do not divide into 32 groups",
    ):
        detector(head=head)
