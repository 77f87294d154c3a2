"""Every extractor runs on anything: no objects, odd sizes, one pixel."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.shared.feature_extractor import SSD_EXTRACTORS, build_feature_extractor
from boxwright.families.shared.hyperparams import variance_scaling
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.layers import Conv2d, ConvSettings, KernelRule, make_conv
from boxwright.nn.necks.bifpn import COMBINERS, BiFpn
from boxwright.nn.preprocessing import PadToMultipleResizer
from boxwright.pipeline import messages as m
from boxwright.types import Targets
from tests.conftest import SMALL_MODEL


def config(kind: str) -> bw.Pipeline:
    text = SMALL_MODEL.replace("ssd_mobilenet_v2_fpn_keras", kind).replace(
        "depth_multiplier: 0.25", "depth_multiplier: 0.1"
    )
    if "efficientnet" in kind:
        text = text.replace("fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }", BIFPN)
        text = text.replace("depth_multiplier: 0.1", "").replace("use_depthwise: true\n      override", "#", 1)
        text = text.replace("override_base_feature_extractor_hyperparams: true", "")
    if "timm" in kind:
        text = text.replace("override_base_feature_extractor_hyperparams: true", "")
    elif "resnet" in kind and kind.endswith("_keras"):
        text = text.replace("use_depthwise: true", "", 1)
    if "mnasfpn" in kind:
        text = text.replace("max_level: 5", "max_level: 6")
    if kind == "ssd_inception_v3":
        text = text.replace("height: 64 width: 64", "height: 80 width: 80")
    if "fpn" not in kind:
        text = text.replace("fpn { min_level: 3 max_level: 5 additional_layer_depth: 32 }", "num_layers: 3")
    return parse_message(text, bw.Pipeline)


BIFPN = "bifpn { min_level: 3 max_level: 5 num_iterations: 2 num_filters: 32 }"
# VGG needs larger images than the others: see test_vgg16.py, and SpaghettiNet, test_spaghettinet.py. PNASNet is as large as all others together. The larger EfficientNets differ in size alone.
KINDS = [
    k
    for k in SSD_EXTRACTORS
    if k not in ("ssd_vgg16", "ssd_pnasnet", "ssd_spaghettinet", "timm")
    and not ("efficientnet" in k and k[18] in "124567")
]
KINDS.append("timm/test_resnet.r160_in1k")


def test_kinds() -> None:
    assert len([kind for kind in KINDS if kind.endswith("_keras")]) == 4 + 3 + 2
    assert len([kind for kind in KINDS if not kind.endswith("_keras")]) == 4 + 6 + 3 + 2 + 4 + 2 + 1 + 1


@pytest.mark.slow_except(
    "True-ssd_efficientnet-b3_bifpn_keras",
    "False-ssd_mobilenet_v1_ppn",
    "False-ssd_inception_v3",
    "False-ssd_mobilenet_v1_keras",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depthwise", [True, False])
def test_trains_and_detects_on_nothing(kind: str, depthwise: bool) -> None:
    pipeline = config(kind)
    assert pipeline.model is not None
    assert pipeline.model.ssd is not None
    assert pipeline.model.ssd.feature_extractor is not None
    if depthwise and ("efficientnet" in kind or ("resnet" in kind and kind.endswith("_keras"))):
        pipeline.model.ssd.feature_extractor.use_depthwise = True
        with pytest.raises(bw.ConfigError, match="use_depthwise: .* takes only False"):
            bw.build_detector(pipeline)
        return
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
    total = LossTerm.sum(detector.criterion(predictions, nothing))
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
    with pytest.raises(bw.DataError, match="image 0: expected a HWC array"):
        detector.detect([image])


def test_detect_does_not_depend_on_the_batch() -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_keras"))
    images = [np.random.default_rng(i).integers(0, 255, (40 + i, 50, 3), np.uint8) for i in range(3)]
    together, apart = detector.detect(images), [detector.detect([image])[0] for image in images]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.scores, other.scores)
        torch.testing.assert_close(one.boxes, other.boxes)


def test_images_of_one_size_share_a_batch_wherever_they_are() -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_keras"))
    detector.preprocessor = detector.preprocessor.with_resizer(PadToMultipleResizer(64))
    sizes = [(64, 64), (128, 64), (60, 50), (64, 64), (128, 64)]
    images = [np.random.default_rng(n).integers(0, 255, (*size, 3), np.uint8) for n, size in enumerate(sizes)]
    apart = [detector.detect([image])[0] for image in images]
    with mock.patch.object(detector, "predict", wraps=detector.predict) as predict:
        together = detector.detect(images)
    # Of three sizes of images two are of one size after padding.
    assert [len(call.args[0]) for call in predict.call_args_list] == [3, 2]
    for one, other in zip(together, apart, strict=True):
        assert one.image_size == other.image_size
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


def test_grey_images_and_padding_to_a_multiple() -> None:
    text = SMALL_MODEL.replace("width: 64 }", "width: 64 convert_to_grayscale: true }").replace(
        "min_depth: 8", "min_depth: 8 pad_to_multiple: 48", 1
    )
    detector = bw.build_detector(parse_message(text, bw.Pipeline))
    inputs, _ = detector.preprocess(torch.rand(1, 30, 40, 3) * 255)
    assert inputs.shape == (1, 1, 64, 64)
    predictions = detector.predict(inputs)
    # 64 is padded to 96: twelve cells of 8 px, of which the anchors of the last four lie outside the image.
    assert predictions.feature_maps[0].shape[-2:] == (12, 12)
    assert predictions.anchors.shape[0] == predictions.box_codes.shape[1] == 2 * (12**2 + 6**2 + 3**2)
    assert predictions.level_sizes == (288, 72, 18)
    assert detector.detect([np.zeros((20, 20, 3), np.uint8)])


def test_one_image_trains_on_maps_of_one_pixel() -> None:
    """TF normalizes a single value to its bias, and learns that its deviation is 0."""
    norm = BatchNorm2d(3, momentum=0.1)
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([1.0, 2, 3]))
    assert norm(torch.full((1, 3, 1, 1), 7.0)).flatten().tolist() == [1, 2, 3]
    assert norm.running_mean.tolist() == pytest.approx([0.7] * 3)  # type: ignore[union-attr]
    assert norm.running_var.tolist() == pytest.approx([0.9] * 3)  # type: ignore[union-attr]
    halves = BatchNorm2d(3)(torch.ones(1, 3, 1, 1, dtype=torch.bfloat16))
    assert halves.dtype == torch.bfloat16
    values = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(
        norm(values), torch.nn.functional.batch_norm(values, None, None, norm.weight, norm.bias, True)
    )


def test_depthwise_kernels_start_as_keras_starts_them() -> None:
    """Keras counts 3 × 3 × 64 inputs and 3 × 3 outputs of a depthwise kernel."""
    rule = KernelRule(variance_scaling(2.0, "FAN_OUT"))
    kernel = make_conv(64, 64, 3, rule, groups=64).weight
    assert kernel.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.1)


@pytest.mark.parametrize("method", list(COMBINERS))
def test_bifpn_combines(method: str) -> None:
    """Untrained, every way of combining is a sum or an average of the inputs."""
    combiner = COMBINERS[method]
    neck = BiFpn((4, 6), 8, ConvSettings(), extra_levels=1, iterations=2, combiner=combiner)
    assert neck.channels == (8, 8, 8)
    maps = neck([torch.rand(1, 4, 9, 7), torch.rand(1, 6, 5, 4)])
    assert [tuple(level.shape[-2:]) for level in maps] == [(9, 7), (5, 4), (3, 2)]
    weights = torch.ones(3, 1)
    shares = weights if combiner is None else combiner(weights)
    assert shares.sum().item() == pytest.approx(1.0 if method == "fast_attention" else 3.0, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('type: "ssd_mobilenet_v1" fpn { }', "ssd_mobilenet_v1 has none"),
        (
            'type: "ssd_mobilenet_v2_fpn_keras" bifpn { }',
            "SsdFeatureExtractor.bifpn: ssd_mobilenet_v2_fpn_keras has none",
        ),
        ('type: "ssd_vgg16" conv_hyperparams { batch_norm { } }', "not normalized"),
        ('type: "ssd_vgg16" depth_multiplier: 0.5', "takes only 1.0"),
        ('type: "timm/test_resnet.r160_in1k" use_explicit_padding: true', "takes only False"),
        ('type: "ssd_efficientnet-b0_bifpn_keras" bifpn { }', "num_iterations: expected at least 1"),
        (
            'type: "ssd_resnet50_v1_fpn_keras" fpn { min_level: 1 }',
            "fpn.min_level: should be greater than or equal to 2",
        ),
    ],
)
def test_what_an_extractor_has_no_use_for_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(bw.ConfigError, match=wanted):
        build_feature_extractor(parse_message(text, m.SsdFeatureExtractor))


@pytest.mark.parametrize("kind", ["timm/test_resnet.r160_in1k", "ssd_mobilenet_v1_keras"])
def test_frozen_normalization_keeps_its_statistics(kind: str) -> None:
    pipeline = config(kind)
    assert pipeline.model is not None
    assert pipeline.model.ssd is not None
    pipeline.model.ssd.freeze_batchnorm = True
    network = bw.build_detector(pipeline).train().network
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)
    before = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
    network(torch.randn(2, 3, 64, 64), torch.full((2, 2), 64))
    assert before
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())
    assert all(norm.weight.requires_grad for norm in norms)


def test_levels_must_fit_the_anchors() -> None:
    text = SMALL_MODEL.replace("max_level: 5 anchor_scale", "max_level: 6 anchor_scale")
    with pytest.raises(bw.ConfigError, match="3 levels, the anchor generator 4"):
        bw.build_detector(parse_message(text, bw.Pipeline))


@pytest.mark.slow
def test_network_compiles_without_graph_breaks_in_the_criterion() -> None:
    detector = bw.build_detector(config("ssd_mobilenet_v2_fpn_keras"))
    inputs, _ = detector.preprocess(torch.zeros(1, 64, 64, 3))
    with torch.no_grad():
        predictions = detector.predict(inputs)
    targets = Targets(torch.tensor([[[1.0, 1, 20, 20]]]), torch.tensor([[1]]), torch.ones(1, 1), torch.ones(1, 1) > 0)
    explained = torch._dynamo.explain(lambda t: detector.criterion(predictions, t)["Loss/classification_loss"].value)(
        targets
    )
    assert explained.graph_break_count == 0
